"""What is in a table or a dataset, before anything is trained on it.

For each column: how many values, how many missing, the most frequent ones, the share of rows whose value would count as
unseen at a minimum count, and the **signal**: the share of the label's entropy that the column explains alone,

    1 - H(label | column) / H(label),

with the label rate of each value taken from the even rows and judged on the odd rows, so that a column of ids does not
shine by memory. A signal near 1 means that the column knows the label: it leaks.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossrank.data.batches import Batch
from crossrank.data.dataset import EncodedDataset
from crossrank.data.encoder import MISSING_ID, UNSEEN_ID, Encoder
from crossrank.data.labels import labels_of_chunk
from crossrank.schema import Categorical, Column, Multivalent, Numeric, Schema

SAMPLE_ROWS = 200_000
TOP = 3
LEAK = 0.8
BINS = 64


@dataclasses.dataclass(frozen=True)
class ColumnSummary:
    """One column; shares are of rows, for a multivalent column of values."""

    name: str
    kind: str
    distinct: int | None  # of a numeric column unknown
    missing: float
    top: list[tuple[str, float]]
    rare: float  # the share that would be unseen at the minimum count
    signal: float | None
    warnings: list[str]


@dataclasses.dataclass(frozen=True)
class Description:
    """A whole table or dataset."""

    name: str
    rows: int
    label: str
    label_rate: float
    columns: list[ColumnSummary]

    @property
    def warnings(self) -> list[str]:
        return [f"'{column.name}' {warning}" for column in self.columns for warning in column.warnings]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def describe(
    source: Any, *, schema: Schema | None = None, label: str | None = None, min_count: int = 10, **table_options: Any
) -> Description:
    """Look through a table (one streaming pass) or an encoded dataset (its training rows).

    Args:
        source: what ``open_table`` opens, or a dataset folder.
        schema: what the columns mean; drafted where left out. Columns outside it are described as categories.
        label: the label's name, for the draft.
        min_count: the minimum count that the share of rare values is told for.
    """
    if isinstance(source, str | Path) and (Path(source) / "manifest.json").is_file():
        source = EncodedDataset.open(source)
    if isinstance(source, EncodedDataset):
        train = source.train
        batch = train.take(np.arange(min(train.num_rows, SAMPLE_ROWS)))
        return _summarise(
            str(source.path), source.encoder, train.num_rows, float(train.labels.mean()), batch, min_count
        )
    return _describe_table(source, schema, label, min_count, table_options)


def _describe_table(
    source: Any, schema: Schema | None, label: str | None, min_count: int, table_options: dict[str, Any]
) -> Description:
    import torch

    from crossrank.data.table import open_table

    table = open_table(source, **table_options)
    whole = _every_column(schema or Schema.infer(table.head(), label=label), table.columns)
    encoder = Encoder.fit(table, whole)
    sample, labels, rows, total = None, None, 0, 0.0
    for chunk in table.chunks([*whole.names, whole.label.name], rows=SAMPLE_ROWS):
        values = labels_of_chunk(chunk, whole.label)
        if sample is None:
            sample, labels = encoder.encode(chunk.frame, where=chunk.where), values
        rows += len(values)
        total += float(values.sum(dtype=np.float64))
    assert sample is not None and labels is not None  # a table without rows was refused above
    batch = Batch(sample.features(), torch.from_numpy(labels))
    return _summarise(table.name, encoder, rows, total / rows, batch, min_count)


def _every_column(schema: Schema, names: tuple[str, ...]) -> Schema:
    """The schema with every value counted, and with the columns it leaves out as categories."""
    counted: list[Column] = []
    for column in schema.features:
        if isinstance(column, Numeric):
            counted.append(column)
        else:
            counted.append(dataclasses.replace(column, min_count=1, max_size=None, hash_size=None))
    known = {schema.label.name, schema.weight, *schema.names}
    return Schema(
        [*counted, *(Categorical(name=name) for name in names if name not in known)], schema.label, schema.weight
    )


def _summarise(name: str, encoder: Encoder, rows: int, label_rate: float, sample: Batch, min_count: int) -> Description:
    labels = sample.labels.numpy()
    binary = encoder.schema.label.kind == "binary"
    ids = sample.features.categorical.numpy()
    columns = []
    for i, column in enumerate(encoder.schema.categorical):
        signal = _signal(ids[:, i], labels) if binary else None
        columns.append(_categories(encoder, column, rows, min_count, signal))
    columns += [_categories(encoder, column, rows, min_count, None) for column in encoder.schema.multivalent]
    for i, number in enumerate(encoder.schema.numeric):
        signal = _signal(_binned(sample.features.numeric[:, i].numpy()), labels) if binary else None
        columns.append(_number(encoder, number, signal))
    return Description(name, rows, encoder.schema.label.name, label_rate, columns)


def _categories(
    encoder: Encoder, column: Categorical | Multivalent, rows: int, min_count: int, signal: float | None
) -> ColumnSummary:
    vocabulary, counts = encoder.vocabularies[column.name], encoder.counts(column.name)
    total, known = max(int(counts.sum()), 1), counts[UNSEEN_ID + 1 :]
    hashed = column.hash_size is not None
    order = np.argsort(-known, kind="stable")[:TOP]
    top = [(vocabulary.text_of(int(i) + UNSEEN_ID + 1), float(known[i] / total)) for i in order] if not hashed else []
    rare = float((known[known < min_count].sum() + counts[UNSEEN_ID]) / total)
    distinct = int((known > 0).sum())
    warnings = []
    if distinct + (counts[MISSING_ID] > 0) + (counts[UNSEEN_ID] > 0) <= 1:
        warnings.append("is the same in every row: it cannot help.")
    elif column.kind == "categorical" and distinct > 0.9 * rows and rows > 1:
        warnings.append("is different in nearly every row, like an id: leave it out, or it is learned by heart.")
    warnings += _leaks(signal)
    missing = float(counts[MISSING_ID] / total)
    return ColumnSummary(column.name, column.kind, distinct, missing, top, rare, signal, warnings)


def _number(encoder: Encoder, column: Numeric, signal: float | None) -> ColumnSummary:
    known = encoder.statistics[column.name]
    total = max(known.count + known.missing, 1)
    mean = "mean of logs" if column.log_shift is not None else "mean"
    top = [(f"{mean} {known.mean:.4g}", 0.0), (f"deviation {known.deviation:.4g}", 0.0)]
    return ColumnSummary(column.name, column.kind, None, known.missing / total, top, 0.0, signal, _leaks(signal))


def _leaks(signal: float | None) -> list[str]:
    return ["nearly determines the label: does it leak?"] if signal is not None and signal > LEAK else []


def _binned(numbers: NDArray[np.float32]) -> NDArray[np.int64]:
    """Equally filled bins; equal numbers share one."""
    edges = np.unique(np.quantile(numbers, np.linspace(0, 1, BINS + 1)[1:-1]))
    return np.searchsorted(edges, numbers)


def _signal(values: NDArray[Any], labels: NDArray[np.float32]) -> float | None:
    """The share of the label's entropy explained on odd rows by the rates of even rows; None for a single class."""
    base = labels[0::2].mean() if len(labels) > 1 else 0.0
    if len(labels) < 4 or not 0 < base < 1 or not 0 < labels[1::2].mean() < 1:
        return None
    size = int(values.max()) + 1
    seen = np.bincount(values[0::2], minlength=size)
    clicks = np.bincount(values[0::2], weights=labels[0::2], minlength=size)
    rate = np.clip((clicks + base) / (seen + 1), 1e-6, 1 - 1e-6)  # one row of the base rate, for values seen seldom
    odd = labels[1::2]

    def entropy(rates: Any) -> float:
        return float(-(odd * np.log(rates) + (1 - odd) * np.log1p(-rates)).mean())

    return max(0.0, 1 - entropy(rate[values[1::2]]) / entropy(np.full(len(odd), base, np.float64)))
