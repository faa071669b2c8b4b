"""A dataset that models can be trained on together."""

from __future__ import annotations

import numpy as np
import pytest

from crossrank.data import DatasetWriter, EncodedDataset, EncodedRows, Encoder
from crossrank.data.rows import LabeledRows
from crossrank.data.vocabulary import Vocabulary
from crossrank.schema import Categorical, Label, Schema


@pytest.fixture
def plain_dataset(tmp_path) -> EncodedDataset:
    """Rows without bags."""
    draw, sizes = np.random.default_rng(0), {"user": 50, "item": 30}
    schema = Schema([Categorical(name=name) for name in sizes], Label(name="liked"))
    vocabularies = {}
    for name, size in sizes.items():
        letters = np.frombuffer("".join(f"{i:04}" for i in range(size - 2)).encode(), np.uint8)
        vocabularies[name] = Vocabulary(letters, np.arange(4, len(letters) + 1, 4), np.full(size, 9, np.int64))
    with DatasetWriter(tmp_path / "dataset", schema) as writer:
        for split, count in {"train": 900, "valid": 300, "test": 300}.items():
            ids = np.stack([draw.integers(2, size, count) for size in sizes.values()], axis=1).astype(np.uint32)
            labels = (draw.random(count) < 0.2 + 0.6 * ((ids[:, 0] + ids[:, 1]) % 2)).astype(np.float32)
            writer.append(split, LabeledRows(EncodedRows(ids, np.empty((count, 0), np.float32)), labels))
        writer.finish(Encoder(schema, vocabularies, {}), {})
    return EncodedDataset.open(tmp_path / "dataset")
