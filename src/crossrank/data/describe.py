"""What is in a table or a dataset, before anything is trained on it.

For each column: how many values, how many missing, the most frequent ones, the share of rows whose value would count as
unseen at a minimum count, and the **signal**: the share of the label that the column explains alone. For a binary label
it is the share of its entropy,

    1 - H(label | column) / H(label),

for a number the share of the variance of its rank. What each value says of the label is taken from the even rows and
judged on the odd rows, so that a column of ids does not shine by memory. A signal near 1 means that the column knows
the label: it leaks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossrank.data.dataset import EncodedDataset, open_data
from crossrank.data.drafting import draft_table
from crossrank.data.encoder import MISSING_ID, UNSEEN_ID, Encoder
from crossrank.data.labels import labels_of_chunk, unusable_rows
from crossrank.data.on_demand import pl
from crossrank.data.rows import EncodedRows, Floats
from crossrank.data.table import Table
from crossrank.schema import Categorical, Column, Date, Label, LabelKind, Multivalent, Numeric, Schema
from crossrank.schema.draft import Draft

SAMPLE_ROWS = 200_000
FEWEST_ROWS = 50  # fewer may agree with the label by chance
TOP = 3
LEAK: dict[LabelKind, float] = {"binary": 0.8, "classes": 0.8, "real": 0.99, "grade": 0.99}  # numbers go together
BINS = 64
ROWS_OF_A_BIN = 20  # at least, to know its rate of the label


@dataclasses.dataclass(frozen=True)
class ColumnSummary:
    """One column; shares are of rows, for a multivalent column of values."""

    name: str
    kind: str  # of feature; or weight, group, left out
    distinct: int | None  # unknown of a numeric column, and of vectors and structs
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
    label: str | None
    label_rate: float | None
    columns: list[ColumnSummary]
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)  # which columns, and why
    notes: list[str] = dataclasses.field(default_factory=list)  # about the drafted schema

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
        schema: what the columns mean; drafted where left out. Columns that are no features are described as categories.
        label: the label's name, for the draft. Without, and where no column has a usual name, there is no signal.
        min_count: the minimum count that the share of rare values is told for.
    """
    source = open_data(source, **table_options)
    if isinstance(source, EncodedDataset):
        train, target = source.train, source.schema.label
        some = train.rows.slice(0, min(train.num_rows, SAMPLE_ROWS))
        columns = _summarise(source.encoder, train.num_rows, some.encoded, some.labels, min_count)
        rate = None if target.num_outputs > 1 else float(train.labels.mean())
        return Description(str(source.path), train.num_rows, target.name, rate, columns)
    return _describe_table(source, schema, label, min_count)


def column_warnings(frame: pl.DataFrame, schema: Schema) -> list[str]:
    """What a description of these rows warns of; rows that will be refused, with their places, do not count."""
    if not set(schema.required) <= set(frame.columns):
        return []
    bad = np.any([bad for _, bad in unusable_rows(frame, schema)], axis=0)
    frame = frame.select(list(schema.required)).filter(~bad)
    return describe(frame, schema=schema).warnings if len(frame) else []


def _describe_table(table: Table, schema: Schema | None, label: str | None, min_count: int) -> Description:
    head = table.head()
    draft = _draft_of(schema, table.columns) if schema else draft_table(table, label=label, needs_label=False)
    others = [name for name in table.columns if name in draft.left_out or name in (draft.weight, draft.group)]
    nested = [name for name in others if head[name].dtype.is_nested()]
    whole = _every_column(draft, [name for name in others if not head[name].dtype.is_nested()])
    encoder = Encoder.fit(table, whole)
    sample, labels, rows, total = None, np.zeros(0, np.float32), 0, 0.0
    for chunk in table.chunks([*whole.inputs, *(draft.label.inputs if draft.label else [])], rows=SAMPLE_ROWS):
        values = labels_of_chunk(chunk, draft.label) if draft.label else labels
        if sample is None:
            sample, labels = encoder.encode(chunk.frame, where=chunk.where), values
        rows += len(chunk.frame)
        total += float(values.sum(dtype=np.float64))
    assert sample is not None  # a table without rows was refused above
    columns = [
        *_summarise(encoder, rows, sample, labels, min_count),
        *(ColumnSummary(name, "", None, head[name].null_count() / len(head), [], 0.0, None, []) for name in nested),
    ]
    inputs = {column.name: column.input for column in (*whole.categorical, *whole.multivalent, *whole.numeric)}
    meanings = dict.fromkeys(draft.left_out, "left out") | {draft.weight: "weight", draft.group: "group"}
    places, apart = {name: place for place, name in enumerate(table.columns)}, set(others)
    columns = [
        dataclasses.replace(column, kind=meanings[column.name], warnings=[]) if column.name in apart else column
        for column in sorted(columns, key=lambda column: places[inputs.get(column.name, column.name)])
    ]
    name, rate = (draft.label.name, total / rows) if draft.label else (None, None)
    rate = None if draft.label and draft.label.num_outputs > 1 else rate
    return Description(table.name, rows, name, rate, columns, draft.left_out, draft.notes)


def _draft_of(schema: Schema, names: Iterable[str]) -> Draft:
    """A schema that a person gave, as if it were drafted."""
    needed = set(schema.required)
    left_out = dict.fromkeys((name for name in names if name not in needed), "not in the schema")
    weight, group = (None if name in schema.inputs else name for name in (schema.weight, schema.group))
    features = list(schema.in_table)
    return Draft(features=features, left_out=left_out, notes=[], label=schema.label, weight=weight, group=group)


def _every_column(draft: Draft, others: Iterable[str]) -> Schema:
    """The drafted features with every value counted, and other columns as categories."""
    counted: list[Column] = []
    for column in draft.features:
        if isinstance(column, Numeric):
            counted.append(dataclasses.replace(column, encoding="scalar"))
        elif isinstance(column, Date):
            counted.append(column)
        else:
            counted.append(dataclasses.replace(column, min_count=1, max_size=None, hash_size=None))
    label = draft.label or Label(name="no label")
    label = Label(name=label.name, kind="real") if label.kind == "grade" else label  # its group is described too
    return Schema([*counted, *(Categorical(name=name) for name in others)], label)


def _summarise(encoder: Encoder, rows: int, sample: EncodedRows, labels: Floats, min_count: int) -> list[ColumnSummary]:
    """Each column of the encoder; without labels, or with a few only, none has a signal."""
    kind = encoder.schema.label.kind
    told = len(labels) >= FEWEST_ROWS and kind not in ("classes", "tasks")
    columns = []
    for i, column in enumerate(encoder.schema.categorical):
        signal = _signal(sample.categorical[:, i], labels, kind) if told else None
        columns.append(_categories(encoder, column, rows, min_count, signal))
    columns += [_categories(encoder, column, rows, min_count, None) for column in encoder.schema.multivalent]
    for number, numbers in zip(encoder.schema.numeric, encoder.raw_numbers(sample).T, strict=True):
        numbers = np.where(np.isnan(numbers), np.nanmin(numbers, initial=0.0) - 1, numbers)  # a value like others
        signal = _signal(_binned(numbers, labels, kind), labels, kind) if told else None
        columns.append(_number(encoder, number, signal, constant=bool((numbers == numbers[0]).all())))
    return columns


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
        warnings.append(_constant(rows))
    elif column.kind == "categorical" and distinct > 0.9 * rows and rows > 1:
        warnings.append(
            f"has {distinct:,} different values in {rows:,} rows, like an id: leave it out, or it is learned by heart."
        )
    warnings += _leaks(signal, encoder.schema.label.kind)
    missing = float(counts[MISSING_ID] / total)
    return ColumnSummary(column.name, column.kind, distinct, missing, top, rare, signal, warnings)


def _number(encoder: Encoder, column: Numeric, signal: float | None, *, constant: bool) -> ColumnSummary:
    known = encoder.statistics[column.name]
    total = max(known.count + known.missing, 1)
    mean = "mean of logs" if column.log_shift is not None else "mean"
    top = [(f"{mean} {known.mean:.4g}", 0.0), (f"deviation {known.deviation:.4g}", 0.0)]
    warnings = [_constant(total)] if constant else _leaks(signal, encoder.schema.label.kind)
    return ColumnSummary(column.name, column.kind, None, known.missing / total, top, 0.0, signal, warnings)


def _constant(rows: int) -> str:
    return f"is the same in all {rows:,} rows that were looked at: it cannot help."


def _leaks(signal: float | None, kind: LabelKind) -> list[str]:
    leaks = signal is not None and signal > LEAK[kind]
    return [f"nearly determines the label alone (signal {signal:.3f}): does it leak?"] if leaks else []


def _binned(numbers: Floats, labels: Floats, kind: LabelKind) -> NDArray[np.int64]:
    """Bins that even rows fill equally, for a binary label those of each class; equal numbers share one."""
    even, classes = numbers[0::2], labels[0::2]
    parts = [even[classes == 0], even[classes == 1]] if kind == "binary" else [even]
    cuts = []
    for part in parts:
        bins = max(1, min(BINS // len(parts), len(part) // ROWS_OF_A_BIN))
        cuts += [np.quantile(part, np.linspace(0, 1, bins + 1))] if len(part) else []
    return np.searchsorted(np.unique(np.concatenate(cuts)), numbers, side="right")


def _signal(values: NDArray[Any], labels: Floats, kind: LabelKind) -> float | None:
    """The share of the label explained on odd rows by what even rows say; None where all of these have one label."""
    if kind in ("real", "grade"):
        labels = (np.searchsorted(np.sort(labels), labels) / len(labels)).astype(np.float32)
    even, odd = labels[0::2], labels[1::2]
    base = float(even.mean())
    if (even == even[0]).all() or (odd == odd[0]).all():
        return None
    size = int(values.max()) + 1
    seen = np.bincount(values[0::2], minlength=size)
    sums = np.bincount(values[0::2], weights=even, minlength=size)
    means = ((sums + base) / (seen + 1))[values[1::2]]  # one row of the base rate, for values seen seldom

    def loss(answers: Any) -> float:
        if kind in ("real", "grade"):
            return float(((odd - answers) ** 2).mean())
        rates = np.clip(answers, 1e-6, 1 - 1e-6)
        return float(-(odd * np.log(rates) + (1 - odd) * np.log1p(-rates)).mean())

    return max(0.0, 1 - loss(means) / loss(np.full(len(odd), base)))
