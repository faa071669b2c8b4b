"""An encoded dataset in which some numbers are no longer told apart by the ids of their values."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path

import numpy as np

from crossrank.data.crossing import PART_ROWS
from crossrank.data.dataset import EncodedDataset
from crossrank.data.encoder import Encoder
from crossrank.data.rows import EncodedRows
from crossrank.data.vocabulary import FIRST_ID
from crossrank.data.writer import DatasetWriter


def with_one_bin(
    dataset: EncodedDataset, columns: Collection[str], into: Path | str, *, overwrite: bool = False
) -> EncodedDataset:
    """The dataset in which all values of these numeric columns are one bin; it must have no crosses.

    The vector of the bin is then the same for every row that has a number, and learned like any other.

    Args:
        dataset: of which a copy is made.
        columns: the names of the columns, which have ids of values.
        into: the folder to make; it is complete or absent.
        overwrite: replace an encoded dataset that is already there.
    """
    old, statistics = dataset.encoder, dict(dataset.encoder.statistics)
    for name in columns:
        known = statistics[name]
        lows, highs, counts = (np.asarray(one) for one in (known.lows, known.highs, known.counts))
        one_bin = {"lows": lows[:1].tolist(), "highs": highs[-1:].tolist()}
        total = [*counts[:FIRST_ID].tolist(), int(counts[FIRST_ID:].sum())]
        statistics[name] = dataclasses.replace(known, **one_bin, counts=total)
    encoder = Encoder(old.schema, old.vocabularies, statistics)
    ids = [one.column in columns for one in old.features if one.kind == "categorical"]
    with DatasetWriter(into, encoder.schema, overwrite=overwrite) as writer:
        for name in dataset.num_rows:
            split = dataset.split(name)
            for start in range(0, len(split), PART_ROWS):
                rows = split.rows.slice(start, start + PART_ROWS)
                categorical = np.array(rows.encoded.categorical)
                categorical[:, ids] = np.minimum(categorical[:, ids], FIRST_ID)
                encoded = EncodedRows(categorical, rows.encoded.numeric, rows.encoded.bags)
                writer.append(name, dataclasses.replace(rows, encoded=encoded))
        writer.finish(encoder, {key: dataset.manifest[key] for key in ("source", "split") if key in dataset.manifest})
    return EncodedDataset.open(into)
