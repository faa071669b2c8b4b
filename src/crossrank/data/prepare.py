"""From a raw table to an encoded dataset, in two streaming passes.

Reading: the table is parsed, split and coded, the encoder learns from the training rows, and the codes are spooled to
disk. Writing: the spool is read again, codes become ids, numbers are scaled, and the rows go to their splits. Memory
holds the vocabulary and a few chunks, whatever the size of the table. Crosses are added to the dataset once it is whole
(:mod:`crossrank.data.crossing`).
"""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter, defaultdict
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from crossrank.config import to_dict
from crossrank.data.batches import prefetch
from crossrank.data.crossing import write_crossed
from crossrank.data.dataset import EncodedDataset
from crossrank.data.encoder import Encoder
from crossrank.data.encoder_builder import EncoderBuilder, Lookups
from crossrank.data.labels import GroupNumbers, labels_of_chunk, unusable_rows, weights_of_series
from crossrank.data.number_codes import coded_like
from crossrank.data.picking import check_columns
from crossrank.data.progress import Phases
from crossrank.data.rows import Floats, Ids, LabeledRows, concatenate
from crossrank.data.split_rows import Split
from crossrank.data.splits import SPLITS, Assign, SplitSettings
from crossrank.data.spool import Spool, SpooledChunk
from crossrank.data.table import Chunk, Table, open_table
from crossrank.data.time_split import ByTime
from crossrank.data.writer import DatasetWriter
from crossrank.errors import DataError
from crossrank.files import writing
from crossrank.ray import EngineName, cluster
from crossrank.schema import Schema

# The C library of Linux gives freed memory back, to clear it again for the next chunk, until it has seen a block of
# about 32 MiB freed, its largest limit. Without, reading takes a tenth longer.
KEPT_BYTES = (32 << 20) - (64 << 10)


def prepare(
    source: Any,
    schema: Schema,
    into: Path | str,
    *,
    split: SplitSettings | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    overwrite: bool = False,
    progress: bool = True,
    engine: EngineName = "local",
    like: Encoder | None = None,
    **table_options: Any,
) -> EncodedDataset:
    """Encode a table of any size into a dataset folder.

    Args:
        source: what :func:`open_table` opens, or the rows of each split as :func:`open_splits` opens them.
        schema: what each column means.
        into: the folder to make; it is complete or absent, also when this is interrupted.
        split: which rows train, validate and test.
        on_error: ``"skip"`` to leave out, and count, rows that cannot be read or whose label, weight or number is
            refused.
        overwrite: replace an encoded dataset that is already there.
        progress: show a progress bar where stderr is a terminal.
        engine: ``"ray"`` to read and encode the files of a table on a cluster (:mod:`crossrank.data.by_file`); the
            dataset is the same, byte for byte.
        like: an encoder of the same schema, whose values and pieces of numbers are taken, and the form of statistics.
        **table_options: more for :func:`open_table`, such as ``separator`` and ``header``.

    Raises:
        SchemaError: for a column that is missing.
        DataError: for a value that is refused, with its place, or a target that cannot be written.
    """
    if schema.crosses:
        with DatasetWriter(into, schema, overwrite=overwrite) as writer:
            options: dict[str, Any] = {"split": split, "on_error": on_error, "progress": progress, "engine": engine}
            options |= {"like": like, **table_options}
            base = prepare(source, schema.with_crosses([]), writer.folder / "base", **options)
            encoder = write_crossed(base, schema.crosses, writer, like=like)
            shutil.rmtree(base.path)
            writer.finish(encoder, {key: base.manifest[key] for key in ("source", "split")})
        return EncodedDataset.open(into)
    table = open_table(source, on_error=on_error, **table_options)
    check_columns(schema.required, table.columns, table.name)
    settings, _ = (split or SplitSettings()).decided(table, schema)
    np.empty(KEPT_BYTES, np.uint8)  # freed at once
    if engine == "ray":
        from crossrank.data.by_file import Job, prepare_by_file

        job = Job(table, schema, settings, skip=on_error == "skip")
        writing_to = DatasetWriter(into, schema, overwrite=overwrite)
        with writing_to as writer, cluster() as tasks, Phases(shown=progress) as phases:
            prepare_by_file(job, writer, phases, tasks)
        return EncodedDataset.open(into)
    with DatasetWriter(into, schema, overwrite=overwrite) as writer, Phases(shown=progress) as phases:
        spool = Spool(writer.folder / "spool", schema)
        reading = Reading(table, schema, settings, skip=on_error == "skip")
        phases.start("Reading")
        for chunk, share_done in prefetch(reading.chunks(), depth=1):
            with writing(writer.path, DataError):
                spool.write(chunk)
            phases.add(len(chunk.splits), share_done)
        reading.seen.check(table, schema)
        encoder, lookups = reading.builder.finish()
        if like:
            encoder = Encoder(encoder.schema, encoder.vocabularies, coded_like(like.statistics, encoder.statistics))
        phases.start("Writing")
        encoded = ((by_split(chunk, encoder, lookups), share_done) for chunk, share_done in spool.read())
        for rows_by_split, share_done in prefetch(encoded, depth=1):
            for name, rows in rows_by_split.items():
                writer.append(name, rows)
            phases.add(sum(map(len, rows_by_split.values())), share_done)
        writer.finish(encoder, {"source": reading.seen.about(table), "split": to_dict(settings)})
    return EncodedDataset.open(into)


@dataclasses.dataclass
class Seen:
    """What was met among rows.

    Attributes:
        labels: of training rows, the least and the greatest of each chunk, by the label's column.
        skipped: rows that were left out, by reason.
    """

    num_rows: int = 0
    num_training: int = 0
    labels: defaultdict[str, set[float]] = dataclasses.field(default_factory=lambda: defaultdict(set))
    skipped: Counter[str] = dataclasses.field(default_factory=Counter)

    def add(self, other: Seen) -> None:
        self.num_rows += other.num_rows
        self.num_training += other.num_training
        for name, found in other.labels.items():
            self.labels[name] |= found
        self.skipped += other.skipped

    def check(self, table: Table, schema: Schema) -> None:
        """Refuse rows that teach nothing."""
        table.skipped.update(+self.skipped)
        if not self.num_training:
            raise DataError(
                f"Some rows must be left for training; got none of {self.num_rows:,} in {table.name}.",
                hint="Give more rows, or a larger first fraction.",
            )
        label = schema.label
        for name in label.inputs:
            found = self.labels[name]
            if len(found) > 1:
                continue
            shown = " or ".join(label.classes[int(value)] if label.classes else f"{value:g}" for value in found)
            raise DataError(
                f"Label '{name}' must differ between training rows; got {shown or 'nothing'} in all "
                f"{self.num_training:,}.",
                hint="Name another column as the label, give rows of both kinds, or divide them by another split.",
            )

    def about(self, table: Table) -> dict[str, Any]:
        """For the manifest: what was read."""
        return {"name": table.name, "rows": self.num_rows, "skipped": dict(sorted(table.skipped.items()))}


class Reading:
    """The first pass over a table or a part of it: learns the encoder, and gives the chunks to spool."""

    def __init__(self, table: Table, schema: Schema, settings: SplitSettings, *, skip: bool) -> None:
        self._table, self._schema, self._settings, self._skip = table, schema, settings, skip
        self.builder, self.groups, self.seen = EncoderBuilder(schema), GroupNumbers(), Seen()
        in_frame = {schema.weight, schema.group, settings.column, *(many.input for many in schema.multivalent)}
        self.as_words = [] if skip else [name for name in schema.required if name not in in_frame]
        self.columns = list(dict.fromkeys([*schema.required, *([settings.column] if settings.column else [])]))

    def chunks(self) -> Generator[tuple[SpooledChunk, float]]:
        """Each chunk, coded, and the share of the table that is done."""
        with ThreadPoolExecutor(max_workers=1) as pool:  # some splits count the rows: the first can be read meanwhile
            assign = pool.submit(self._settings.assigner, self._table, together=self._schema.ranked_group)
            for chunk in self._table.chunks(self.columns, as_words=self.as_words):
                yield self.code(chunk, assign.result()), chunk.share_done

    def code(self, chunk: Chunk, assign: Assign) -> SpooledChunk:
        """Learn from a chunk, and code it."""
        times = None
        if isinstance(assign, ByTime):
            times = assign.ranks(chunk)
            splits = assign.splits(chunk, times)
        else:
            splits = assign(chunk)
        if self._skip:
            good = self._usable(chunk)
            chunk = dataclasses.replace(chunk, frame=chunk.frame.filter(good))
            splits, times = splits[good], None if times is None else times[good]
        training = splits == 0
        labels, weights, groups = _targets(chunk, self._schema, self.groups)
        coded = self.builder.add(chunk, training)
        self.seen.num_rows += len(splits)
        if training.any():
            self.seen.num_training += int(training.sum())
            names = self._schema.label.inputs
            for name, column in zip(names, labels[training].reshape(-1, len(names)).T, strict=True):
                known = column[~np.isnan(column)]
                self.seen.labels[name] |= {float(known.min()), float(known.max())} if len(known) else set()
        return SpooledChunk(coded, splits, labels, weights, groups, times)

    def _usable(self, chunk: Chunk) -> NDArray[np.bool_]:
        """Which rows to keep; the reasons for the others are counted."""
        good = np.ones(len(chunk.frame), bool)
        for reason, bad in unusable_rows(chunk.frame, self._schema):
            self.seen.skipped[reason] += int((bad & good).sum())
            good &= ~bad
        return good


def by_split(chunk: SpooledChunk, encoder: Encoder, lookups: Lookups) -> dict[str, LabeledRows]:
    """The second pass: the rows of a chunk, encoded, by their split."""
    rows = LabeledRows(chunk.coded.encode(encoder, lookups), chunk.labels, chunk.weights, chunk.groups, chunk.times)
    chosen = {name: np.flatnonzero(chunk.splits == position) for position, name in enumerate(SPLITS)}
    return {
        name: rows if len(places) == len(rows) else rows.take(places) for name, places in chosen.items() if len(places)
    }


def _targets(chunk: Chunk, schema: Schema, groups: GroupNumbers) -> tuple[Floats, Floats | None, Ids | None]:
    """Labels, weights and group numbers of a chunk."""
    return (
        labels_of_chunk(chunk, schema.label),
        weights_of_series(chunk.frame[schema.weight], chunk.where) if schema.weight else None,
        groups.add(chunk.frame[schema.group]) if schema.group else None,
    )


def encode_table(encoder: Encoder, source: Any, **table_options: Any) -> Split:
    """Encode a raw table with labels into memory, to evaluate on it.

    Args:
        encoder: what training learned.
        source: what :func:`open_table` opens.
        **table_options: more for :func:`open_table`.
    """
    table, schema = open_table(source, **table_options), encoder.schema
    check_columns(schema.required, table.columns, table.name)
    groups = GroupNumbers()
    parts = [
        LabeledRows(encoder.encode(chunk.frame, where=chunk.where), *_targets(chunk, schema, groups))
        for chunk in table.chunks(list(schema.required))
    ]
    return Split(concatenate(parts))
