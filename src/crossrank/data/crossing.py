"""Adding crosses to an encoded dataset, a part at a time.

The training rows are walked through once for the cells there are, and once for each order, which leaves their
statistics in a file; then all rows are written anew with what the crosses add. Memory holds the cells and a few parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossrank.data.arrays import room_for
from crossrank.data.cell_codes import CellCodes, CellKeys, Keys
from crossrank.data.dataset import EncodedDataset
from crossrank.data.encoder import Encoder
from crossrank.data.ordered import Form, OrderedStatistics
from crossrank.data.rows import EncodedRows, Floats, LabeledRows, Positions
from crossrank.data.split_rows import Split
from crossrank.data.writer import DatasetWriter
from crossrank.errors import DataError
from crossrank.files import writing
from crossrank.schema import Cross

NUM_ORDERS = 4  # random ones; epochs take turns
ORDER_SEED = 0x9E3779B97F4A7C15  # no training's: the rows that it learns first must not be those that know least
PART_ROWS = 1 << 20


def add_crosses(
    dataset: EncodedDataset, crosses: Sequence[Cross], into: Path | str, *, overwrite: bool = False
) -> EncodedDataset:
    """The dataset with more columns, crosses of those that it has.

    Args:
        dataset: of which a copy is made.
        crosses: to add to those that it may already have.
        into: the folder to make; it is complete or absent.
        overwrite: replace an encoded dataset that is already there.

    Raises:
        SchemaError: for a cross of columns that are not there or have no ids.
        DataError: where the times of the rows are not known though they were divided by time.
    """
    with DatasetWriter(into, dataset.schema, overwrite=overwrite) as writer:
        encoder = write_crossed(dataset, [*dataset.schema.crosses, *crosses], writer)
        writer.finish(encoder, {key: dataset.manifest[key] for key in ("source", "split") if key in dataset.manifest})
    return EncodedDataset.open(into)


def write_crossed(
    dataset: EncodedDataset, crosses: Sequence[Cross], writer: DatasetWriter, *, like: Encoder | None = None
) -> Encoder:
    """Write all rows with these crosses in place of those that the dataset has; returns what encodes them.

    Crosses that an encoder has, that of the dataset if no other is given, keep the form of their statistics.
    """
    had = (like or dataset.encoder).crosses
    forms = [had[cross.name].form if cross.name in had else Form() for cross in crosses]
    base, train, kind = dataset.encoder.with_crosses([]), dataset.train, dataset.schema.label.kind
    cells = [CellKeys.of(cross.of, base.features) for cross in crosses]
    known, num_orders = _known(train, cells), 1 if by_time(dataset) else NUM_ORDERS
    with writing(writer.path, DataError):
        file = writer.folder / "statistics"
        found: Floats = room_for(file, (len(train), num_orders, len(crosses), 2))
        for turn in range(num_orders):
            walks = [OrderedStatistics(len(keys), kind, form) for keys, form in zip(known, forms, strict=True)]
            for rows, times in parts_in_order(dataset, turn):
                ids, labels = train.categorical[rows], train.labels[rows]
                for place, (walk, keys, cell) in enumerate(zip(walks, known, cells, strict=True)):
                    found[rows, turn, place] = walk.add(np.searchsorted(keys, cell.keys(ids)), labels, times)
        codes = [
            CellCodes(cross, cell, (keys, walk.counts, walk.sums), walk.prior, kind, walk.form)
            for cross, cell, keys, walk in zip(crosses, cells, known, walks, strict=True)
        ]
        encoder, shown = base.with_crosses(codes), [place for place, one in enumerate(crosses) if one.statistics]
        for name in dataset.num_rows:
            for start in range(0, len(dataset.split(name)), PART_ROWS):
                part = slice(start, start + PART_ROWS)
                numbers = found[part][:, :, shown] if name == "train" and shown else None
                writer.append(name, _crossed(dataset.split(name), part, base, encoder, numbers))
        file.unlink()
    return encoder


def by_time(dataset: EncodedDataset) -> bool:
    """Whether the order of a dataset's rows is that of their times."""
    return str(dataset.manifest.get("split", {}).get("method")).startswith("time")


def _known(train: Split, cells: Sequence[CellKeys]) -> list[Keys]:
    """The keys of the cells of the training rows, in order."""
    found: list[list[Keys]] = [[np.empty(0, np.uint64)] for _ in cells]
    for start in range(0, len(train), PART_ROWS):
        ids = train.categorical[start : start + PART_ROWS]
        for parts, cell in zip(found, cells, strict=True):
            parts.append(np.unique(cell.keys(ids)))
            if sum(map(len, parts[1:])) > max(len(parts[0]), PART_ROWS):  # seldom, so that it costs little
                parts[:] = [np.unique(np.concatenate(parts))]
    return [np.unique(np.concatenate(parts)) for parts in found]


def parts_in_order(dataset: EncodedDataset, turn: int) -> Iterator[tuple[Positions, NDArray[np.integer] | None]]:
    """The training rows in an order, and their times where several may be equal, a part at a time."""
    train, times, size = dataset.train, dataset.train.rows.times, len(dataset.train)
    if not by_time(dataset):
        order = train.order(ORDER_SEED, turn)
        yield from ((order.rows(start, min(start + PART_ROWS, size)), None) for start in range(0, size, PART_ROWS))
    elif times is None and dataset.manifest["split"]["column"] is None:  # the rows came in the order of their times
        yield from ((np.arange(start, min(start + PART_ROWS, size)), None) for start in range(0, size, PART_ROWS))
    elif times is None:
        raise DataError(
            f"The dataset {dataset.path} must know the times of its rows; it was prepared before they were kept.",
            hint="Prepare it again.",
        )
    else:
        rows = np.argsort(times, kind="stable")
        starts = np.flatnonzero(np.append(True, np.diff(times[rows]) != 0))  # all rows of a time in one part
        cuts = np.append(starts[np.unique(np.searchsorted(starts, np.arange(0, starts[-1] + 1, PART_ROWS)))], size)
        yield from ((rows[a:b], times[rows[a:b]]) for a, b in pairwise(cuts))


def _crossed(split: Split, part: slice, base: Encoder, encoder: Encoder, numbers: Floats | None) -> LabeledRows:
    """Rows of a split as the new encoder sees them; the statistics of training rows are given: (N, O, C, 2)."""
    rows = split.rows.slice(part.start, part.stop)
    ids, width = (sum(one.width for one in base.features if one.kind == kind) for kind in ("categorical", "numeric"))
    old = EncodedRows(rows.encoded.categorical[:, :ids], rows.encoded.numeric[:, :width], rows.encoded.bags)
    encoded = encoder.add_cells(old)
    if numbers is not None:
        numbers = numbers.reshape(*numbers.shape[:2], -1)  # (N, O, K)
        encoded.numeric[:, width:] = numbers[:, 0]
        orders = numbers[:, 1:] if numbers.shape[1] > 1 else None
        encoded = dataclasses.replace(encoded, orders=orders)
    return dataclasses.replace(rows, encoded=encoded)
