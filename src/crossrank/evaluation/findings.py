"""What is kept beside a trained model so that it can be explained and reported without its data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from crossrank.data import EncodedDataset
from crossrank.evaluation.crosses import measure_crosses
from crossrank.evaluation.curves import measure_curves
from crossrank.evaluation.importance import measure_importance
from crossrank.evaluation.spectrum import measure_spectra
from crossrank.files import write_text
from crossrank.models import Model


def write_findings(
    folder: Path,
    model: Model,
    dataset: EncodedDataset,
    *,
    split: str = "test",
    initial: Sequence[dict[str, Any]] = (),
    logits: NDArray[Any] | None = None,
) -> None:
    """Write crosses.json and spectrum.json, where the model has cross layers, curves.json and importance.json.

    Args:
        folder: the run's.
        model: with its final weights.
        dataset: its valid rows show the crosses.
        split: whose rows the curves are drawn from and the importance is measured on.
        initial: what :func:`measure_spectra` said of the untrained model.
        logits: the model's answers to the rows of the split, where they are known already.
    """
    if pairs := measure_crosses(model, dataset.valid):
        _write(folder / "crosses.json", {"pairs": pairs})
    if layers := measure_spectra(model, dataset.valid):
        before = {(layer["network"], layer["layer"]): layer["values"] for layer in initial}
        for layer in layers:
            layer["initial"] = before.get((layer["network"], layer["layer"]), [])
        _write(folder / "spectrum.json", {"layers": layers})
    curves = measure_curves(model, dataset.split(split), dataset.encoder, logits=logits)
    _write(folder / "curves.json", {"split": split, **curves})
    if importance := measure_importance(model, dataset.split(split), dataset.encoder):
        _write(folder / "importance.json", {"split": split, **importance})


def _write(path: Path, content: dict[str, Any]) -> None:
    """JSON without indents, which would double files that hold thousands of numbers."""
    write_text(path, json.dumps(content, ensure_ascii=False) + "\n")
