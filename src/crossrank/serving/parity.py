"""Whether an exported graph answers as the run it is made of.

| what is measured | binary label, classes, tasks | a number |
| --- | --- | --- |
| ``largest_difference`` | of a probability | of the answer, in deviations of the label |
| ``loss_difference`` | of the log loss | of half the squared error, in squared deviations |

Without labels, or one of them, the run's own answers take their place: then the second row is the mean divergence
``KL(run ‖ graph)``, what the log loss would rise by if the run were right, or half the mean squared difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crossrank.data import EncodedDataset, open_data
from crossrank.data.rows import SCORING_ROWS, EncodedRows
from crossrank.errors import BundleError
from crossrank.evaluation.evaluate import encoded_rows
from crossrank.runs import Run
from crossrank.serving.made_up_rows import draw_rows

Doubles: TypeAlias = NDArray[np.float64]
MOST_ROWS, DRAWN_ROWS = SCORING_ROWS, 1024
LARGEST_DIFFERENCE = 1e-5  # of float32, which changes nothing but the order of sums
LOSS_DIFFERENCE = 2e-4  # of fewer bits; what papers of this field count as a gain begins at 1e-3
SMALLEST = 1e-7  # a probability of float32 may be a plain 0 or 1


class ParityRows(NamedTuple):
    """Encoded rows, where they are from, and their labels, if known."""

    rows: EncodedRows
    source: str
    labels: NDArray[np.float32] | None = None


def parity_rows(run: Run, data: Any) -> ParityRows:
    """Rows to compare on; see :func:`crossrank.serving.export.export`."""
    if data is None:
        return ParityRows(run.encoder.encode_rows(draw_rows(run.encoder, DRAWN_ROWS)), "drawn from the encoder")
    opened = open_data(data)
    split = encoded_rows(run.encoder, opened, "valid")
    some = split.rows.slice(0, min(len(split), MOST_ROWS))
    return ParityRows(
        some.encoded, "validation rows" if isinstance(opened, EncodedDataset) else "given rows", some.labels
    )


def measure_parity(
    run: Run, answers: Callable[[EncodedRows], NDArray[np.float32]], given: ParityRows
) -> dict[str, Any]:
    """How far a graph's answers are from the run's."""
    kind = run.schema.label.kind
    deviation = float(run.model.label_deviation) if kind == "real" else 1.0
    expected = run.answers([given.rows.features()]).astype(np.float64) / deviation
    found = answers(given.rows).astype(np.float64) / deviation
    labels = None if given.labels is None or kind == "grade" else given.labels.astype(np.float64) / deviation
    if labels is not None and kind == "tasks":
        labels = np.where(np.isnan(labels), expected, labels)
    losses = [_loss(kind, expected if labels is None else labels, each) for each in (expected, found)]
    return {
        "rows": len(given.rows),
        "source": given.source,
        "largest_difference": float(np.abs(found - expected).max()),
        "loss_difference": losses[1] - losses[0],
    }


def _loss(kind: str, labels: Doubles, answers: Doubles) -> float:
    """The mean log loss, or half the mean squared error; labels may be probabilities: (N,) or (N, K)."""
    if kind in ("real", "grade"):
        return float(np.square(labels - answers).mean() / 2)
    if kind in ("binary", "tasks"):
        labels, answers = (np.stack([1 - each, each], axis=-1) for each in (labels, answers))
    elif labels.ndim == 1:
        labels = np.eye(answers.shape[1])[labels.astype(np.int64)]
    return float(-(labels * np.log(answers.clip(SMALLEST, 1))).sum(axis=-1).mean())


def check_parity(parity: dict[str, Any], precision: str) -> None:
    """BundleError for a difference beyond the bound."""
    exact = precision == "float32"
    key, bound = ("largest_difference", LARGEST_DIFFERENCE) if exact else ("loss_difference", LOSS_DIFFERENCE)
    if not abs(parity[key]) <= bound:  # also where it is nan
        raise BundleError(
            f"The exported graph must answer as the run does, with a {key.replace('_', ' ')} of at most {bound:g}; got "
            f"{parity[key]:.2g} on {parity['rows']:,} rows ({parity['source']}), so nothing was written.",
            hint="In a model of your own, look for operations that lose digits, or mix the rows of a batch."
            if exact
            else "Export with --precision float32.",
        )
