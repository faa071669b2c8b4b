"""How well a model does on rows with known answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crossrank.data import EncodedDataset, Encoder, Split, Table, open_data
from crossrank.data.prepare import encode_table
from crossrank.data.rows import SCORING_ROWS
from crossrank.errors import DataError
from crossrank.evaluation.intervals import measure_intervals
from crossrank.evaluation.metrics import measure
from crossrank.models import Model
from crossrank.schema import Label, LabelKind

ENOUGH_ROWS = 100  # fewer are decided by chance too often
WORST: dict[LabelKind, tuple[str, str, str]] = {
    "real": ("r2", "R²", "mean"),
    "binary": ("normalized_entropy", "normalized entropy", "share of ones"),
    "classes": ("normalized_entropy", "normalized entropy", "share of each class"),
    "tasks": ("normalized_entropy", "mean normalized entropy", "shares of ones"),
}


class Trained(Protocol):
    """What can be evaluated: a run, or anything else that has a model and the encoder it was trained with."""

    @property
    def model(self) -> Model: ...

    @property
    def encoder(self) -> Encoder: ...


def evaluate(run: Trained, data: Any, *, split: str = "test", **table_options: Any) -> dict[str, Any]:
    """The metrics of a trained model on a dataset's split or on all rows of a raw table.

    Args:
        run: a run folder's :class:`Run`.
        data: an :class:`EncodedDataset`, the path of one, or a raw table with the label (a path or a data frame).
        split: which rows of an encoded dataset.

    Returns:
        rows, logloss, auc and more; see :func:`crossrank.evaluation.metrics.measure`.
    """
    rows = encoded_rows(run.encoder, open_data(data, **table_options), split)
    return evaluate_split(run.model, rows, run.encoder.schema.label)


def evaluate_with_intervals(run: Trained, data: Any, *, split: str = "test", **table_options: Any) -> dict[str, Any]:
    """The same with ``intervals``, see :func:`crossrank.evaluation.intervals.measure_intervals`."""
    rows, label = encoded_rows(run.encoder, open_data(data, **table_options), split), run.encoder.schema.label
    logits = score_split(run.model, rows)
    intervals = measure_intervals(rows.labels, logits, label_kind=label.kind, weights=rows.weights)
    return {**measure_split(logits, rows, label), "intervals": intervals}


def evaluate_split(model: Model, rows: Split, label: Label) -> dict[str, Any]:
    """The metrics of a model on encoded rows."""
    return measure_split(score_split(model, rows), rows, label)


def score_split(model: Model, rows: Split) -> NDArray[np.float32]:
    """A model's answers to encoded rows, as logits: (N,), or (N, K) for K classes or tasks."""
    return model.predict_logits(batch.features for batch in rows.batches(SCORING_ROWS)).numpy()


def measure_split(logits: ArrayLike, rows: Split, label: Label, *, k: int = 10) -> dict[str, Any]:
    """The metrics of answers to encoded rows; NDCG of the first k of each group."""
    of_rows: dict[str, Any] = {"weights": rows.weights, "groups": rows.groups, "k": k, "tasks": label.columns}
    return measure(rows.labels, logits, label_kind=label.kind, **of_rows)


def encoded_rows(encoder: Encoder, data: EncodedDataset | Table, split: str) -> Split:
    """The rows of a dataset's split, or all rows of a table, encoded as a run's training rows were."""
    if isinstance(data, EncodedDataset):
        if encoder.crosses and data.encoder.fingerprint == encoder.with_crosses([]).fingerprint:
            rows = data.split(split).rows  # of which the run's memory is all that is missing
            return Split(dataclasses.replace(rows, encoded=encoder.add_cells(rows.encoded)))
        if data.encoder.fingerprint != encoder.fingerprint:
            raise DataError(
                f"The dataset {data.path} must be encoded as the run's training rows were; its encoder is another.",
                hint="Give the raw table instead: the run encodes it itself.",
            )
        return data.split(split)
    return encode_table(encoder, data)


def worse_than_constant(measured: Mapping[str, Any], label_kind: LabelKind) -> str | None:
    """What to say of a model that does worse than the same answer to every row would; None of a better one."""
    if label_kind == "grade":  # a constant has no order
        return None
    key, name, answer = WORST[label_kind]
    found = measured[key]
    worse = found is not None and (found < 0 if label_kind == "real" else found > 1)
    if not worse or measured["rows"] < ENOUGH_ROWS:
        return None
    return f"On the validation rows the model does worse than their {answer} would: its {name} is {found:.3g}."
