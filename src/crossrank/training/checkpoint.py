"""The state of a training that can go on: weights, optimiser, averages, random numbers, position in the data."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from crossrank.files import fresh_partial, publish, read_json, write_json
from crossrank.runs.lifecycle import CHECKPOINT


@dataclasses.dataclass
class Position:
    """Where a training stands, and how it went so far."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # of the epoch, the next to come
    best: float = float("inf")
    best_step: int = 0
    misses: int = 0  # evaluations in a row without a better one
    drops: int = 0  # of the learning rate
    rows: int = 0  # learned from
    seconds: float = 0.0  # spent on that
    journal_lines: int = 0

    def move_to(self, step: int, batches_per_epoch: int) -> None:
        self.step = step
        self.epoch, self.batch = divmod(step, batches_per_epoch)


def save_checkpoint(folder: Path, position: Position, tensors: dict[str, Tensor]) -> None:
    """Write the checkpoint beside the old one, then put it in its place."""
    partial = fresh_partial(folder / CHECKPOINT)
    tensors = {**tensors, "random": torch.get_rng_state()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial / "state.safetensors")
    write_json(partial / "position.json", dataclasses.asdict(position))
    publish(partial, folder / CHECKPOINT)


def load_checkpoint(folder: Path) -> tuple[Position, dict[str, Tensor]]:
    """What :func:`save_checkpoint` wrote; the random state is set as it was."""
    values: dict[str, Any] = read_json(folder / CHECKPOINT / "position.json")
    tensors = load_file(folder / CHECKPOINT / "state.safetensors")
    torch.set_rng_state(tensors.pop("random"))
    return Position(**values), tensors
