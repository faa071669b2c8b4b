"""What is kept beside a trained model so that it can be explained and reported without its data."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from crossrank.data import EncodedDataset, Split
from crossrank.evaluation.crosses import measure_crosses
from crossrank.evaluation.curves import measure_curves
from crossrank.evaluation.importance import measure_importance
from crossrank.evaluation.spectrum import measure_spectra
from crossrank.files import write_text
from crossrank.models import Model
from crossrank.models.own import unexplained
from crossrank.results import Spectrum

Found = TypeVar("Found")
OF_CLASSES = (
    "A cross moves each of several classes or tasks in another way, so the crosses of such a label are not listed."
)


def write_findings(
    folder: Path,
    model: Model,
    dataset: EncodedDataset,
    *,
    split: str = "test",
    initial: Sequence[Spectrum] = (),
    logits: NDArray[Any] | None = None,
) -> None:
    """Write crosses.json and spectrum.json, where the model has cross layers, curves.json and importance.json.

    A model whose crosses cannot be measured is no reason to lose it: crosses.json says so, under ``unexplained``.

    Args:
        folder: the run's.
        model: with its final weights.
        dataset: its valid rows show the crosses.
        split: whose rows the curves are drawn from and the importance is measured on.
        initial: what :func:`initial_spectra` said of the untrained model.
        logits: the model's answers to the rows of the split, where they are known already.
    """
    if model.num_outputs > 1:
        _write(folder / "crosses.json", {"pairs": [], "unexplained": [OF_CLASSES]})
        found = measure_importance(model, dataset.split(split), dataset.encoder)
        _write(folder / "importance.json", {"split": split, **found})
        return
    crosses, problems = _try(model, lambda: measure_crosses(model, dataset.valid))
    if crosses or problems:
        content: dict[str, Any] = {"pairs": [cross.to_dict() for cross in crosses]}
        _write(folder / "crosses.json", content | ({"unexplained": problems} if problems else {}))
    spectra, _ = _try(model, lambda: measure_spectra(model, dataset.valid, initial=initial))
    if spectra:
        _write(folder / "spectrum.json", {"layers": [one.to_dict() for one in spectra]})
    if dataset.schema.label.kind != "grade":
        curves = measure_curves(model, dataset.split(split), dataset.encoder, logits=logits)
        _write(folder / "curves.json", {"split": split, **curves})
    if importance := measure_importance(model, dataset.split(split), dataset.encoder):
        _write(folder / "importance.json", {"split": split, **importance})


def initial_spectra(model: Model, rows: Split) -> list[Spectrum]:
    """What :func:`measure_spectra` says before the first step, and a warning where it will say nothing afterwards."""
    return _try(model, lambda: measure_spectra(model, rows))[0] if model.num_outputs == 1 else []


def _try(model: Model, measure: Callable[[], list[Found]]) -> tuple[list[Found], list[str]]:
    """What was measured, and what could not be: whatever the code of somebody's own model may raise."""
    try:
        return measure(), unexplained(model)
    except Exception as error:
        problem = f"The cross layers of {type(model).__name__} cannot be explained; {type(error).__name__}: {error}"
        warnings.warn(problem, stacklevel=3)
        return [], [problem]


def _write(path: Path, content: dict[str, Any]) -> None:
    """JSON without indents, which would double files that hold thousands of numbers."""
    write_text(path, json.dumps(content, ensure_ascii=False) + "\n")
