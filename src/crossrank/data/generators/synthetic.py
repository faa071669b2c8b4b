"""Click logs of any size in the shape of a known set, with a known truth: for work at scale without the set itself."""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from crossrank.config import to_dict
from crossrank.data.encoder import Encoder
from crossrank.data.generators.criteo_like import CHUNK_ROWS, CROSSES, SLICES, Chunk, Texts, truth
from crossrank.data.generators.planted import entropy
from crossrank.data.progress import Phases
from crossrank.data.rows import EncodedRows, LabeledRows
from crossrank.data.scaling import NumericStatistics
from crossrank.data.sources import criteo
from crossrank.data.splits import SPLITS
from crossrank.data.text import splitmix64
from crossrank.data.vocabulary import FIRST_ID, UNSEEN_ID, Vocabulary
from crossrank.data.writer import DatasetWriter
from crossrank.errors import ConfigError, DataError, did_you_mean, listing
from crossrank.files import write_json, writing
from crossrank.folders import making
from crossrank.schema import Schema

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
    schema: Schema | None = None,
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
        schema: of an encoded dataset: :func:`crossrank.data.sources.criteo.schema` with fewer columns or with a
            ``min_count``, which then counts expected occurrences; left out, every column and every value.
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
    if schema is not None and format == "text":
        raise ConfigError("A schema is for encoded rows; got one for text, which always has every column.")
    path, schema = Path(into), schema or truth().schema
    with Phases(shown=progress) as phases, writing(path, DataError):
        phases.start("Writing")
        log = _Log(seed, rows, phases)
        if format == "text":
            _write_text(path, log, overwrite)
        else:
            _write_encoded(path, log, schema, overwrite)
        summary = SyntheticSummary(path, rows, log.ones / rows, log.loss / rows, tuple(CROSSES))
        crosses = [{"columns": cross, "strength": strength} for cross, strength in CROSSES.items()]
        known = {"like": like, "seed": seed, "rows": rows, "base_rate": summary.base_rate}
        known |= {"best_logloss": summary.best_logloss, "crosses": crosses}
        write_json(path.with_name(f"{path.name}.truth.json"), known)
    return summary


def _check(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} must be one of {listing(known)}; got '{value}'.", hint=did_you_mean(value, known))


class _Log:
    """The rows to write, drawn chunk by chunk in several threads, and what is counted on the way."""

    def __init__(self, seed: int, rows: int, phases: Phases) -> None:
        self.seed, self.rows, self._truth, self._phases = seed, rows, truth(), phases
        self._done, self.ones, self.loss = 0, 0, 0.0

    def each(self, make: Callable[[Chunk, int], Made]) -> Generator[Made]:
        """What is made of each chunk and the position of its first row, in order."""
        workers = os.cpu_count() or 1
        pending: deque[Future[tuple[int, int, float, Made]]] = deque()
        with ThreadPoolExecutor(workers) as pool:
            for first in range(0, self.rows, CHUNK_ROWS):
                pending.append(pool.submit(self._draw, make, first))
                if len(pending) > 2 * workers:
                    yield self._count(*pending.popleft().result())
            while pending:
                yield self._count(*pending.popleft().result())

    def _draw(self, make: Callable[[Chunk, int], Made], first: int) -> tuple[int, int, float, Made]:
        chunk = self._truth.chunk(self.seed, first // CHUNK_ROWS, min(CHUNK_ROWS, self.rows - first))
        return len(chunk.labels), int(chunk.labels.sum()), float(entropy(chunk.probability).sum()), make(chunk, first)

    def _count(self, rows: int, ones: int, loss: float, made: Made) -> Made:
        self._done += rows
        self.ones += ones
        self.loss += loss
        self._phases.add(rows, self._done / self.rows)
        return made


def _write_text(path: Path, log: _Log, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise DataError(
            f"{path} must not exist yet; it does.", hint="Choose another name, or pass --overwrite to replace it."
        )
    texts = {name: column.texts for name, column in truth().columns.items()}
    with making(path, DataError) as folder:
        with (folder / "text").open("wb") as file:
            for lines in log.each(lambda chunk, first: _lines(chunk, texts)):
                file.write(lines.data)
        (folder / "text").replace(path)


# A line at its widest: the label, then a tab and up to eight letters for each column. Zero bytes are left out.
_NAMES = criteo.COLUMNS[1:]
_LINE = np.frombuffer(b"\0" + b"\t\0\0\0\0\0\0\0\0" * len(_NAMES) + b"\n", np.uint8)
_FIELDS = np.dtype(
    {
        "names": ["label", *_NAMES],
        "formats": ["u1", *["u8"] * len(_NAMES)],
        "offsets": [0, *range(2, len(_LINE) - 1, 9)],
        "itemsize": len(_LINE),
    }
)


def _lines(chunk: Chunk, texts: Mapping[str, Texts]) -> npt.NDArray[np.uint8]:
    """The rows in the publisher's text format."""
    letters = np.empty((len(chunk.labels), len(_LINE)), np.uint8)
    letters[:] = _LINE
    fields = letters.reshape(-1).view(_FIELDS)
    fields["label"] = ord("0") + chunk.labels
    for name, table in texts.items():
        fields[name] = table.take(chunk.codes[name])
    lines: npt.NDArray[np.uint8] = letters[letters != 0]
    return lines


def _write_encoded(path: Path, log: _Log, schema: Schema, overwrite: bool) -> None:
    training_rows = round(criteo.SPLIT.fractions[0] * log.rows)
    encoder = _encoder(schema, training_rows)
    counts = [count for count in truth().counts if count.name in schema.names]
    logged = np.array([count.logged for count in counts]).reshape(len(counts), SLICES)  # (M, codes)
    numbers = {count.name: table for count, table in zip(counts, encoder.scaling.scale(logged.T).T.copy(), strict=True)}
    sizes = {column.name: encoder.vocabularies[column.name].size for column in schema.categorical}

    def encode(chunk: Chunk, first: int) -> dict[str, LabeledRows]:
        # Codes are in the order of their frequency, so those of rare values are the last.
        ids = [np.where(chunk.codes[name] < size, chunk.codes[name], UNSEEN_ID) for name, size in sizes.items()]
        numeric = [table.take(chunk.codes[name]) for name, table in numbers.items()]
        features = EncodedRows(
            np.stack(ids, axis=1).astype(np.uint32),  # (N, F)
            np.array(numeric, np.float32).reshape(len(numeric), len(chunk.labels)).T.copy(),  # (N, M)
        )
        rows = LabeledRows(features, chunk.labels.astype(np.float32))
        parts = _parts(np.arange(first, first + len(rows), dtype=np.uint64), training_rows)
        return {name: rows.take(np.flatnonzero(parts == part)) for part, name in enumerate(SPLITS) if part in parts}

    with DatasetWriter(path, encoder.schema, overwrite=overwrite) as writer:
        for parts in log.each(encode):
            for name, rows in parts.items():
                writer.append(name, rows)
        source = {"name": f"synthetic rows like criteo, seed {log.seed}", "rows": log.rows, "skipped": {}}
        writer.finish(encoder, {"source": source, "split": to_dict(criteo.SPLIT)})


def _parts(positions: npt.NDArray[np.uint64], training_rows: int) -> npt.NDArray[np.uint64]:
    """The division of ``criteo.SPLIT``, whose last two parts are equal, without a table to ask."""
    halves = splitmix64(positions ^ np.uint64(splitmix64(criteo.SPLIT.seed))) >> np.uint64(63)
    return np.where(positions < training_rows, np.uint64(0), 1 + halves)


def _encoder(schema: Schema, training_rows: int) -> Encoder:
    """What training rows would teach, as far as it is known beforehand: every value there can be, expected counts."""
    vocabularies, statistics = {}, {}
    for column in schema.categorical:
        category = truth().categories[criteo.CATEGORICAL.index(column.name)]
        counts = np.rint(category.shares * training_rows).astype(np.int64)
        kept = int((counts[FIRST_ID:] >= column.min_count).sum()) if column.min_count > 1 else len(counts) - FIRST_ID
        counts[UNSEEN_ID] = round(float(category.shares[FIRST_ID + kept :].sum()) * training_rows)
        letters = category.texts[FIRST_ID : FIRST_ID + kept].view(np.uint8)
        ends = np.arange(8, len(letters) + 1, 8)
        vocabularies[category.name] = Vocabulary(letters, ends, counts[: FIRST_ID + kept])
    for count in (count for count in truth().counts if count.name in schema.names):
        missing = round(float(np.isnan(count.logged).mean()) * training_rows)
        statistics[count.name] = NumericStatistics(count.mean, count.deviation, training_rows - missing, missing)
    return Encoder(schema, vocabularies, statistics)
