"""Preparing a table file by file, on a cluster: the dataset of :func:`crossrank.data.prepare.prepare`, byte for byte.

| stage | a task for each | does |
| --- | --- | --- |
| count | file | counts its rows: a row's position in the table may decide its split |
| read | file | parses, splits and codes its rows, by codes of its own |
| merge | column | of values: adds up how often there was each. Of numbers: learns from all rows again, in their order |
| encode | file | from its own codes to ids, numbers and splits |

How often a value was seen adds up, whatever the order. Sums of numbers, and samples of very many, do not come out equal
to the last digit in another order, so a single task goes through a column's numbers, as one process would.
The process that asked computes the split, where it is by time or by names, writes the arrays, whose checksums are of
all rows in their order, and adds crosses to the finished dataset.

Cost: a task holds the rows of one file, coded, and the vocabulary of one column.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossrank.config import to_dict
from crossrank.data.delimited import DelimitedFile
from crossrank.data.encoder import Encoder
from crossrank.data.encoder_builder import Lookups, counter_of, number_lookups
from crossrank.data.labels import GroupNumbers
from crossrank.data.number_reader import NumberReader
from crossrank.data.parquet import ParquetFile
from crossrank.data.prepare import Reading, Seen, by_split
from crossrank.data.progress import Phases
from crossrank.data.rows import LabeledRows
from crossrank.data.scaling import NumericStatistics
from crossrank.data.splits import Assign, SplitSettings
from crossrank.data.spool import SpooledChunk
from crossrank.data.table import Table
from crossrank.data.writer import DatasetWriter
from crossrank.errors import DataError
from crossrank.ray import Tasks
from crossrank.schema import Categorical, Multivalent, Numeric, Schema


@dataclasses.dataclass(frozen=True)
class Job:
    """What is read, and how."""

    table: Table
    schema: Schema
    settings: SplitSettings
    skip: bool

    def reading(self) -> Reading:
        return Reading(self.table, self.schema, self.settings, skip=self.skip)

    @property
    def embedded(self) -> list[Categorical | Multivalent]:
        return [*self.schema.categorical, *self.schema.multivalent]


def prepare_by_file(job: Job, writer: DatasetWriter, phases: Phases, tasks: Tasks) -> None:
    """Write the dataset of a job."""
    table, schema, num_files = job.table, job.schema, len(job.table.parts)
    sent = tasks.put(dataclasses.replace(job, table=_everywhere(table)))
    counted = [tasks.start(count_rows, sent, index) for index in range(num_files)]
    assign = tasks.put(job.settings.assigner(table, together=schema.ranked_group))
    counts = [tasks.get(count) for count in counted]
    if not any(counts):
        for _ in table.chunks(job.reading().columns):  # says that there are none
            pass
    phases.start("Reading")
    firsts = np.cumsum([0, *counts[:-1]]).tolist()
    parts = 4 + len(job.embedded) + len(schema.numeric)
    read = [tasks.start(read_file, sent, assign, index, first, parts=parts) for index, first in enumerate(firsts)]
    seen = Seen()
    for index, (one, *_) in enumerate(read):
        of_file = tasks.get(one)
        seen.add(of_file)
        phases.add(of_file.num_rows, (index + 1) / num_files)
    table.skipped = Counter()
    seen.check(table, schema)
    _, splits, groups, chunks, *columns = map(list, zip(*read, strict=True))
    read.clear()
    values, numbers = columns[: len(job.embedded)], columns[len(job.embedded) :]
    tables = [
        tasks.start(merge_values, tasks, column, counted, parts=1 + num_files)
        for column, counted in zip(job.embedded, values, strict=True)
    ]
    learned = [
        tasks.start(merge_numbers, tasks, schema, column, splits, files)
        for column, files in zip(schema.numeric, numbers, strict=True)
    ]
    numbered = tasks.start(merge_groups, tasks, groups, parts=num_files)
    found = [tasks.get(one) for one in learned]
    vocabularies = {column.name: tasks.get(own[0]) for column, own in zip(job.embedded, tables, strict=True)}
    encoder = Encoder(
        schema.with_numeric(column for column, _ in found),
        vocabularies,
        {column.name: statistics for column, statistics in found},
    )
    phases.start("Writing")
    sent, started, width = tasks.put(encoder), deque[Any](), tasks.width
    for index in range(num_files + width):
        if index < num_files:
            of_file = [column[index] for column in numbers]
            ids = [column[index + 1] for column in tables]
            started.append(tasks.start(encode_file, sent, chunks[index], numbered[index], *ids, *of_file))
            chunks[index] = None  # the cluster may forget it then
        if index >= width:  # not all at once, or the cluster would hold all rows
            for rows_by_split in tasks.get(started.popleft()):
                for name, rows in rows_by_split.items():
                    writer.append(name, rows)
                phases.add(sum(map(len, rows_by_split.values())), 1 - len(started) / num_files)
    writer.finish(encoder, {"source": seen.about(table), "split": to_dict(job.settings)})


def _everywhere(table: Table) -> Table:
    """The same table with paths that do not depend on where a process was started."""
    parts = []
    for part in table.parts:
        if not isinstance(part, DelimitedFile | ParquetFile):
            raise DataError(
                f"The engine 'ray' reads files, which every machine of the cluster can open; got {part.name}.",
                hint="Write the rows to files on a disk that all of them share, or leave --engine out.",
            )
        part = copy.copy(part)
        part.path = part.path.absolute()
        parts.append(part)
    return Table(parts, part_splits=table.part_splits)


def count_rows(job: Job, index: int) -> int:
    """How many rows a file has."""
    known = job.table.parts[index].num_rows()
    if known is not None:
        return known
    reading = job.reading()
    chunks = job.table.chunks_of(index, reading.columns, 0, Counter(), as_words=reading.as_words)
    return sum(chunk.frame.height for chunk in chunks)


def read_file(job: Job, assign: Assign, index: int, first_row: int) -> list[Any]:
    """What was met in a file, its rows' splits and groups, its rows, and of each column what it taught.

    Of numbers these are the words and the numbers by their codes, and the codes or numbers of each chunk.
    """
    reading, chunks = job.reading(), []
    columns, words = reading.columns, reading.as_words
    for chunk in job.table.chunks_of(index, columns, first_row, reading.seen.skipped, as_words=words):
        chunks.append(reading.code(chunk, assign))
    builder, schema = reading.builder, job.schema
    numbers = [
        (*builder.read(column.name), [chunk.coded.numbers[place] for chunk in chunks])
        for place, column in enumerate(schema.numeric)
    ]
    rest = [dataclasses.replace(chunk, coded=dataclasses.replace(chunk.coded, numbers=[])) for chunk in chunks]
    splits, groups = [chunk.splits for chunk in chunks], reading.groups.texts()
    return [reading.seen, splits, groups, rest, *(builder.counted(one.name) for one in job.embedded), *numbers]


def merge_values(tasks: Tasks, column: Categorical | Multivalent, files: Sequence[Any]) -> list[Any]:
    """The vocabulary of a column, and for each file the table from its codes to ids."""
    counter = counter_of(column)
    codes = [counter.add(tasks.get(file)) for file in files]
    vocabulary, ids = counter.finish()
    return [vocabulary, *(ids[own] for own in codes)]


def merge_numbers(
    tasks: Tasks, schema: Schema, column: Numeric, splits: Sequence[Any], files: Sequence[Any]
) -> tuple[Numeric, NumericStatistics]:
    """A numeric column, its encoding decided, and what is known of it."""
    reader = NumberReader(column, schema)
    for of_rows, file in zip(splits, files, strict=True):
        words, known, chunks = tasks.get(file)
        for split, values in zip(tasks.get(of_rows), chunks, strict=True):
            reader.again(values, split == 0, words, known)
    return reader.finish()


def merge_groups(tasks: Tasks, files: Sequence[Any]) -> list[NDArray[np.uint32]]:
    """For each file, the numbers in the table of its groups."""
    groups = GroupNumbers()
    return [groups.add(tasks.get(file)) for file in files]


def encode_file(
    encoder: Encoder, chunks: Sequence[SpooledChunk], groups: NDArray[np.uint32], *columns: Any
) -> list[dict[str, LabeledRows]]:
    """The rows of a file by split, chunk by chunk; the columns are those of ids, then those of numbers."""
    schema, encoded = encoder.schema, []
    names = [column.name for column in (*schema.categorical, *schema.multivalent)]
    numbers = columns[len(names) :]
    lookups: Lookups = dict(zip(names, columns, strict=False))
    lookups |= number_lookups(encoder, [known for _, known, _ in numbers])
    for place, chunk in enumerate(chunks):
        coded = dataclasses.replace(chunk.coded, numbers=[own[place] for _, _, own in numbers])
        own_groups = None if chunk.groups is None else groups[chunk.groups]
        encoded.append(by_split(dataclasses.replace(chunk, coded=coded, groups=own_groups), encoder, lookups))
    return encoded
