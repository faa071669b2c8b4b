"""Adding crosses to an encoded dataset, a part at a time.

The training rows are walked through once for the cells there are, and once for each order, which leaves their
statistics in a file; then all rows are written anew with what the crosses add. Memory holds the cells and a few parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossrank.data.cell_codes import CellCodes, CellKeys, Keys
from crossrank.data.dataset import EncodedDataset, Split
from crossrank.data.encoder import Encoder
from crossrank.data.ordered import OrderedStatistics
from crossrank.data.rows import EncodedRows, Floats, LabeledRows, Positions
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
    base, train = dataset.encoder.without_crosses(), dataset.train
    every = [*dataset.schema.crosses, *crosses]
    cells = [CellKeys.of(cross.of, base.features) for cross in every]
    known = _known(train, cells)
    with DatasetWriter(into, dataset.schema, overwrite=overwrite) as writer, writing(writer.path, DataError):
        file, num_orders = writer.folder / "statistics", 1 if by_time(dataset) else NUM_ORDERS
        found: Floats = np.memmap(file, np.float32, "w+", shape=(len(train), num_orders, len(every), 2))
        for turn in range(num_orders):
            walks = [OrderedStatistics(len(keys), dataset.schema.label.kind) for keys in known]
            for rows, times in _parts(dataset, turn):
                ids, labels = train.categorical[rows], train.labels[rows]
                for place, (walk, keys, cell) in enumerate(zip(walks, known, cells, strict=True)):
                    found[rows, turn, place] = walk.add(np.searchsorted(keys, cell.keys(ids)), labels, times)
        codes = [
            CellCodes(cross, cell, (keys, walk.counts, walk.sums), walk.prior, walk.kind)
            for cross, cell, keys, walk in zip(every, cells, known, walks, strict=True)
        ]
        encoder = base.with_crosses(codes)
        shown = [place for place, cross in enumerate(every) if cross.statistics]
        for name in dataset.num_rows:
            statistics = found[:, :, shown] if name == "train" and shown else None
            for rows in _rewritten(dataset.split(name), base, encoder, statistics):
                writer.append(name, rows)
        del found, statistics
        file.unlink()
        writer.finish(encoder, {key: dataset.manifest[key] for key in ("source", "split") if key in dataset.manifest})
    return EncodedDataset.open(into)


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


def _parts(dataset: EncodedDataset, turn: int) -> Iterator[tuple[Positions, NDArray[np.integer] | None]]:
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
        yield from ((rows[a:b], times[rows[a:b]]) for a, b in zip(cuts[:-1], cuts[1:], strict=True))


def _rewritten(
    split: Split, base: Encoder, encoder: Encoder, statistics: Floats | None
) -> Iterator[LabeledRows]:
    """The rows of a split as the new encoder sees them; the numbers of training rows are given: (N, O, C, 2)."""
    num_ids, num_numbers = (base.width(kind) for kind in ("categorical", "numeric"))
    for start in range(0, len(split), PART_ROWS):
        rows = split.rows.slice(start, min(start + PART_ROWS, len(split)))
        old = EncodedRows(rows.encoded.categorical[:, :num_ids], rows.encoded.numeric[:, :num_numbers], rows.encoded.bags)
        new, orders = encoder.add_cells(old), None
        if statistics is not None:
            numbers = np.asarray(statistics[start : start + len(rows)]).reshape(len(rows), statistics.shape[1], -1)
            new.numeric[:, num_numbers:] = numbers[:, 0]
            orders = numbers[:, 1:] if numbers.shape[1] > 1 else None
        encoded = EncodedRows(new.categorical, new.numeric, new.bags, orders)
        yield LabeledRows(encoded, rows.labels, rows.weights, rows.groups, rows.times)
