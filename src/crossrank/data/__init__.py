"""Tables, encoders, encoded datasets and batches.

Names are imported when they are first used, because reading raw tables needs polars and reading an encoded dataset does
not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossrank.data.batches import Batch
    from crossrank.data.dataset import EncodedDataset, open_data
    from crossrank.data.encoder import MISSING_ID, UNSEEN_ID, Encoder
    from crossrank.data.parts import Part, Piece
    from crossrank.data.prepare import encode_table
    from crossrank.data.rows import EncodedRows
    from crossrank.data.split_rows import Split
    from crossrank.data.splits import SPLITS, SplitSettings
    from crossrank.data.table import Table, open_splits, open_table
    from crossrank.data.writer import DatasetWriter

_HOMES = {
    "batches": ("Batch",),
    "dataset": ("EncodedDataset", "open_data"),
    "split_rows": ("Split",),
    "encoder": ("MISSING_ID", "UNSEEN_ID", "Encoder"),
    "parts": ("Part", "Piece"),
    "prepare": ("encode_table",),
    "rows": ("EncodedRows",),
    "splits": ("SPLITS", "SplitSettings"),
    "table": ("Table", "open_splits", "open_table"),
    "writer": ("DatasetWriter",),
}

__all__ = [
    "MISSING_ID",
    "SPLITS",
    "UNSEEN_ID",
    "Batch",
    "DatasetWriter",
    "EncodedDataset",
    "EncodedRows",
    "Encoder",
    "Part",
    "Piece",
    "Split",
    "SplitSettings",
    "Table",
    "encode_table",
    "open_data",
    "open_splits",
    "open_table",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"crossrank.data.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
