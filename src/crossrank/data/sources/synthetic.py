"""Click logs of any size in the shape of a known set, with a known truth: for work at scale without the set itself."""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from crossrank.config import to_dict
from crossrank.data.encoder import Encoder, NumericStatistics
from crossrank.data.progress import Phases
from crossrank.data.rows import EncodedRows, LabeledRows
from crossrank.data.sources import criteo
from crossrank.data.sources.criteo_like import CHUNK_ROWS, CROSSES, FIRST_ID, Chunk, truth
from crossrank.data.sources.planted import entropy
from crossrank.data.splits import SPLITS, splitmix64
from crossrank.data.vocabulary import Vocabulary
from crossrank.data.writer import DatasetWriter
from crossrank.errors import ConfigError, DataError, did_you_mean, listing
from crossrank.files import write_json, writing

Made = TypeVar("Made")


@dataclasses.dataclass(frozen=True)
class SyntheticSummary:
    """What was written: ``base_rate`` is the share of ones, ``best_logloss`` the expected log loss of the truth."""

    path: Path
    rows: int
    base_rate: float
    best_logloss: float
    planted: tuple[tuple[str, ...], ...]


def synthesize(
    into: Path | str,
    *,
    rows: int,
    like: Literal["criteo"] = "criteo",
    seed: int = 0,
    format: Literal["text", "encoded"] = "text",  # noqa: A002
    overwrite: bool = False,
    progress: bool = True,
) -> SyntheticSummary:
    """Write a click log, and beside it ``<name>.truth.json`` with its best log loss and planted crosses.

    Args:
        into: the file (text) or folder (encoded) to make; it is complete or absent.
        rows: how many rows; fewer rows are the beginning of more.
        like: the set whose shape it has.
        seed: which rows; the truth is the same for all seeds.
        format: ``"text"`` as the publisher offers it, or ``"encoded"`` for a dataset to train from at once, divided as
            the paper divides Criteo's, whose encoder knows every value there can be, with its expected count.
        overwrite: replace what is there.
        progress: show a progress bar where stderr is a terminal.

    Raises:
        ConfigError: for less than one row, or another set or format.
        DataError: where the target exists or cannot be written.
    """
    _check("format", format, ("text", "encoded"))
    _check("like", like, ("criteo",))
    if rows < 1:
        raise ConfigError(f"A click log needs at least one row; got rows={rows}.")
    path = Path(into)
    with Phases(shown=progress) as phases, writing(path, DataError):
        path.parent.mkdir(parents=True, exist_ok=True)
        phases.start("Writing")
        write = _write_text if format == "text" else _write_encoded
        tally = _Tally(rows, phases)
        write(path, _Log(seed), tally, overwrite)
        summary = SyntheticSummary(path, rows, tally.ones / rows, tally.loss / rows, tuple(CROSSES))
        crosses = [{"columns": cross, "strength": strength} for cross, strength in CROSSES.items()]
        truth = {"like": like, "seed": seed, "rows": rows, "base_rate": summary.base_rate}
        truth |= {"best_logloss": summary.best_logloss, "crosses": crosses}
        write_json(path.with_name(f"{path.name}.truth.json"), truth)
    return summary


def _check(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} must be one of {listing(known)}; got '{value}'.", hint=did_you_mean(value, known))


@dataclasses.dataclass
class _Rows:
    """The rows to write, drawn chunk by chunk in several threads, and what is counted on the way."""

    seed: int
    rows: int
    phases: Phases
    ones: int = 0
    loss: float = 0.0

    def each(self, make: Callable[[Chunk, int], Made]) -> Generator[Made]:
        """What is made of each chunk and the position of its first row, in order."""
        workers = os.cpu_count() or 1
        pending: deque[Future[tuple[Chunk, Made]]] = deque()
        with ThreadPoolExecutor(workers) as pool:
            for first in range(0, self.rows, CHUNK_ROWS):
                pending.append(pool.submit(self._work, make, first))
                if len(pending) > 2 * workers:
                    yield self._count(pending.popleft())
            while pending:
                yield self._count(pending.popleft())
