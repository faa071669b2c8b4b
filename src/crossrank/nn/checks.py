"""The contracts that several layers share, with the errors that state them."""

from __future__ import annotations

from torch import Tensor

from crossrank.errors import ConfigError, ShapeError


def check_count(name: str, value: int) -> None:
    """A size or a count is at least 1."""
    if value < 1:
        raise ConfigError(f"{name} must be at least 1; got {name}={value}.")


def check_dropout(dropout: float) -> None:
    """A dropout probability leaves something over."""
    if not 0.0 <= dropout < 1.0:
        raise ConfigError(
            f"dropout must be at least 0 and below 1; got dropout={dropout}.", hint="0 turns dropout off; 0.1 is usual."
        )


def check_rank(rank: int, input_dim: int) -> None:
    """A factor is at most as wide as what it factorises."""
    if not 1 <= rank <= input_dim:
        raise ConfigError(
            f"rank must be between 1 and {input_dim}, the input width; got rank={rank}.",
            hint=f"Try rank={max(input_dim // 4, 1)} (a quarter of the input), or leave rank out for the full matrix.",
        )


def check_width(name: str, x: Tensor, width: int) -> None:
    """The last axis is as wide as the layer; without this, a width of one would broadcast unnoticed."""
    if x.dim() == 0 or x.shape[-1] != width:
        raise ShapeError(
            f"{name} must have shape (..., {width}); got {tuple(x.shape)}.",
            hint="input_dim of the layer and the width of its input must agree.",
        )
