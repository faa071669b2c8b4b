"""Where a training runs, and in which precision."""

from __future__ import annotations

import torch

from crossrank.errors import ConfigError

BFLOAT16_PAYS = 256  # narrower products are dominated by the conversions, or too small for the matrix units to matter


def choose_device(name: str) -> torch.device:
    """``auto`` is a GPU where there is one.

    Raises:
        ConfigError: where a GPU is asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "training.device must be 'auto' or 'cpu' on this machine; got 'cuda', and torch sees no GPU.",
            hint="Install a torch that is built for CUDA, or leave training.device out.",
        )
    return torch.device("cpu" if name == "cpu" or not torch.cuda.is_available() else "cuda")


def uses_bfloat16(precision: str, input_dim: int, device: torch.device) -> bool:
    """Whether matrix products are to be made in bfloat16."""
    if precision != "auto":
        return precision == "bfloat16"
    return input_dim >= BFLOAT16_PAYS and (device.type == "cuda" or processor_has_bfloat16())


def processor_has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 matrices itself."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
