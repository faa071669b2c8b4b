"""From a raw table to an encoded dataset, in two streaming passes.

Reading: the table is parsed, split and coded, the encoder learns from the training rows, and the codes are spooled to
disk. Writing: the spool is read again, codes become ids, numbers are scaled, and the rows go to their splits. Memory
holds the vocabulary and a few chunks, whatever the size of the table. Crosses are added to the dataset once it is whole
(:mod:`crossrank.data.crossing`).
"""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from crossrank.config import to_dict
from crossrank.data.batches import prefetch
from crossrank.data.crossing import write_crossed
from crossrank.data.dataset import EncodedDataset, Split
from crossrank.data.encoder import Encoder, check_columns
from crossrank.data.encoder_builder import EncoderBuilder, Lookups
from crossrank.data.labels import GroupNumbers, labels_of_chunk, unusable_rows, weights_of_series
from crossrank.data.progress import Phases
from crossrank.data.rows import Floats, Ids, LabeledRows, concatenate
from crossrank.data.splits import SPLITS, Assign, ByTime, SplitSettings
from crossrank.data.spool import Spool, SpooledChunk
from crossrank.data.table import Chunk, Table, open_table
from crossrank.data.writer import DatasetWriter
from crossrank.errors import DataError
from crossrank.files import writing
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
        **table_options: more for :func:`open_table`, such as ``separator`` and ``header``.

    Raises:
        SchemaError: for a column that is missing.
        DataError: for a value that is refused, with its place, or a target that cannot be written.
    """
    if schema.crosses:
        with DatasetWriter(into, schema, overwrite=overwrite) as writer:
            options = {"split": split, "on_error": on_error, "progress": progress, **table_options}
            base = prepare(source, schema.with_crosses([]), writer.folder / "base", **options)
            encoder = write_crossed(base, schema.crosses, writer)
            shutil.rmtree(base.path)
            writer.finish(encoder, {key: base.manifest[key] for key in ("source", "split")})
        return EncodedDataset.open(into)
    table = open_table(source, on_error=on_error, **table_options)
    check_columns(schema.required, table.columns, table.name)
    settings, _ = (split or SplitSettings()).decided(table, schema)
    np.empty(KEPT_BYTES, np.uint8)  # freed at once
    with DatasetWriter(into, schema, overwrite=overwrite) as writer, Phases(shown=progress) as phases:
        spool = Spool(writer.folder / "spool", schema)
        reading = _Reading(table, schema, settings, skip=on_error == "skip")
        phases.start("Reading")
        for chunk, share_done in prefetch(reading.chunks(), depth=1):
            with writing(writer.path, DataError):
                spool.write(chunk)
            phases.add(len(chunk.splits), share_done)
        encoder, lookups = reading.finish()
        phases.start("Writing")
        for by_split, share_done in prefetch(_encode(spool, encoder, lookups), depth=1):
            for name, rows in by_split.items():
                writer.append(name, rows)
            phases.add(sum(map(len, by_split.values())), share_done)
        writer.finish(encoder, {"source": reading.about(), "split": to_dict(settings)})
    return EncodedDataset.open(into)


class _Reading:
    """The first pass over a table: learns the encoder, and gives the chunks to spool."""

    def __init__(self, table: Table, schema: Schema, settings: SplitSettings, *, skip: bool) -> None:
        self._table, self._schema, self._settings, self._skip = table, schema, settings, skip
        self._builder, self._groups = EncoderBuilder(schema), GroupNumbers()
        self._skipped: Counter[str] = Counter()
        self._num_rows, self._num_training = 0, 0
        self._labels: list[set[float]] = [set() for _ in schema.label.inputs]  # of training rows: least and greatest

    def chunks(self) -> Generator[tuple[SpooledChunk, float]]:
        """Each chunk, coded, and the share of the table that is done."""
        schema = self._schema
        in_frame = {schema.weight, schema.group, self._settings.column, *(many.input for many in schema.multivalent)}
        as_words = [] if self._skip else [name for name in schema.required if name not in in_frame]
        columns = [*schema.required, *([self._settings.column] if self._settings.column else [])]
        with ThreadPoolExecutor(max_workers=1) as pool:  # some splits count the rows: the first can be read meanwhile
            assign = pool.submit(self._settings.assigner, self._table, together=schema.ranked_group)
            for chunk in self._table.chunks(columns, as_words=as_words):
                yield self._code(chunk, assign.result()), chunk.share_done

    def _code(self, chunk: Chunk, assign: Assign) -> SpooledChunk:
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
        labels, weights, groups = _targets(chunk, self._schema, self._groups)
        coded = self._builder.add(chunk, training)
        self._num_rows += len(splits)
        if training.any():
            self._num_training += int(training.sum())
            for found, column in zip(self._labels, labels[training].reshape(-1, len(self._labels)).T, strict=True):
                known = column[~np.isnan(column)]
                found.update({float(known.min()), float(known.max())} if len(known) else ())
        return SpooledChunk(coded, splits, labels, weights, groups, times)

    def _usable(self, chunk: Chunk) -> NDArray[np.bool_]:
        """Which rows to keep; the reasons for the others are counted."""
        good = np.ones(len(chunk.frame), bool)
        for reason, bad in unusable_rows(chunk.frame, self._schema):
            self._skipped[reason] += int((bad & good).sum())
            good &= ~bad
        return good

    def finish(self) -> tuple[Encoder, Lookups]:
        """The encoder, and what leads from codes to ids."""
        self._table.skipped.update(+self._skipped)
        if not self._num_training:
            raise DataError(
                f"Some rows must be left for training; got none of {self._num_rows:,} in {self._table.name}.",
                hint="Give more rows, or a larger first fraction.",
            )
        label = self._schema.label
        for name, found in zip(label.inputs, self._labels, strict=True):
            if len(found) > 1:
                continue
            shown = " or ".join(label.classes[int(value)] if label.classes else f"{value:g}" for value in found)
            raise DataError(
                f"Label '{name}' must differ between training rows; got {shown or 'nothing'} in all "
                f"{self._num_training:,}.",
                hint="Name another column as the label, give rows of both kinds, or divide them by another split.",
            )
        return self._builder.finish()

    def about(self) -> dict[str, Any]:
        """For the manifest: what was read."""
        skipped = dict(sorted(self._table.skipped.items()))
        return {"name": self._table.name, "rows": self._num_rows, "skipped": skipped}


def _encode(spool: Spool, encoder: Encoder, lookups: Lookups) -> Generator[tuple[dict[str, LabeledRows], float]]:
    """The second pass: the rows of each split, chunk by chunk, and the share that is done."""
    for chunk, share_done in spool.read():
        rows = LabeledRows(chunk.coded.encode(encoder, lookups), chunk.labels, chunk.weights, chunk.groups, chunk.times)
        chosen = {name: np.flatnonzero(chunk.splits == position) for position, name in enumerate(SPLITS)}
        yield (
            {
                name: rows if len(places) == len(rows) else rows.take(places)
                for name, places in chosen.items()
                if len(places)
            },
            share_done,
        )


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
