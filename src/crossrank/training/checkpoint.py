"""The state of a training that can go on: weights, optimiser, averages, random numbers, position in the data."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from crossrank.errors import RunError
from crossrank.files import Contents, checksum, checksum_of, is_as_written, read_json, signed, write_json, write_tensors
from crossrank.folders import CHECKPOINT, delete
from crossrank.shapes import FileName

JOURNAL = "metrics.jsonl"
ANEW = "Train anew with --overwrite."


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


class _Written(TypedDict):
    """position.json, of any version."""

    step: NotRequired[int]
    epoch: NotRequired[int]
    batch: NotRequired[int]
    journal_lines: NotRequired[int]
    state: NotRequired[FileName]
    state_checksum: NotRequired[str]
    journal_checksum: NotRequired[str]
    checksum: NotRequired[str]
    __extra_items__: NotRequired[int | float]


def save_checkpoint(folder: Path, position: Position, tensors: dict[str, Tensor]) -> None:
    """Write the state beside the old one, then the position, which names it; the older state goes last."""
    place, state = folder / CHECKPOINT, f"state-{position.step}.safetensors"
    place.mkdir(exist_ok=True)
    tensors = {**tensors, "random": torch.get_rng_state()}
    write_tensors(place / state, save_file, {name: tensor.contiguous() for name, tensor in tensors.items()})
    about = {
        "state": state,
        "state_checksum": checksum(place / state),
        "journal_checksum": checksum_of(read_journal(folder)),
    }
    write_json(place / "position.json", signed({**dataclasses.asdict(position), **about}))
    for other in place.iterdir():
        if other.name not in (state, "position.json"):
            delete(other)


def load_checkpoint(folder: Path) -> tuple[Position, list[str], dict[str, Tensor]]:
    """What :func:`save_checkpoint` wrote, and the lines of the journal then; the random state is set as it was.

    Raises:
        RunError: for a file that is not what was written.
    """
    place = folder / CHECKPOINT
    if not is_as_written(read_json(place / "position.json", dict[str, Any], hint=ANEW)):
        raise RunError(f"{folder} is damaged: position.json is not what was written.", hint=ANEW)
    values: dict[str, Any] = read_json(place / "position.json", _Written, hint=ANEW)
    known = {field.name for field in dataclasses.fields(Position)}
    position = Position(**{key: value for key, value in values.items() if key in known})
    lines = read_journal(folder)[: position.journal_lines]
    state = values.get("state", "state.safetensors")  # older ones have no checksums
    Contents(
        place, {state: values.get("state_checksum", "")} if "state" in values else {}, RunError, hint=ANEW
    ).verify()
    if values.get("journal_checksum", checksum_of(lines)) != checksum_of(lines):
        raise RunError(f"{folder} is damaged: {JOURNAL} is not what was written.", hint=ANEW)
    tensors = load_file(place / state)
    torch.set_rng_state(tensors.pop("random"))
    return position, lines, tensors


def read_journal(folder: Path) -> list[str]:
    """The lines of metrics.jsonl, with their ends."""
    file = folder / JOURNAL
    return file.read_text(encoding="utf-8").splitlines(keepends=True) if file.is_file() else []
