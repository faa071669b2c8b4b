"""What a page says about a run, taken from its folder alone; what the folder lacks is None or empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from crossrank.errors import RunError
from crossrank.evaluation.metrics import CRITERIA, badness
from crossrank.results import Cross, Spectrum
from crossrank.runs import Run

MOST_POINTS = 400  # of a curve: as many as a wide screen can show


def run_contents(run: Run, name: str) -> dict[str, Any]:
    """The numbers behind a run's charts, as JSON."""
    spectra = run.spectrum
    return {
        "name": name,
        "label": {"name": run.schema.label.name, "kind": run.schema.label.kind},
        "learning": learning(run),
        "curves": run.curves or None,
        "dependence": run.found_importance.get("dependence", []),
        "crosses": crosses(run),
        "spectra": [
            {
                "label": place(one, spectra),
                **{key: thin([short(value) for value in getattr(one, key)]) for key in ("initial", "values", "used")},
                "width": len(one.values),
            }
            for one in spectra
        ],
    }


def learning(run: Run) -> dict[str, Any]:
    """The criterion by step: of training batches, and on validation rows with averaged and with raw weights."""
    kind = run.schema.label.kind
    criterion, real = CRITERIA[kind], kind == "real"
    lines = [line for line in run.metrics if not line.get("member")]  # of an ensemble, the first
    checks = [line for line in lines if _has(line, "valid", criterion) and _has(line, "valid_raw", criterion)]
    return {
        "criterion": criterion,
        "best_step": run.report["training"]["best_step"],
        # The loss of a number is its squared error, whose root is the criterion.
        "train": thin(
            [
                [line["step"], short(max(line["loss"], 0) ** 0.5 if real else line["loss"])]
                for line in lines
                if "loss" in line and kind != "grade"  # whose loss has another scale
            ]
        ),
        "averaged": thin([[line["step"], short(badness(line["valid"], criterion))] for line in checks]),
        "raw": thin([[line["step"], short(badness(line["valid_raw"], criterion))] for line in checks]),
    }


def _has(line: Mapping[str, Any], split: str, criterion: str) -> bool:
    return split in line and line[split].get(criterion) is not None


def crosses(run: Run) -> dict[str, Any] | None:
    """Strength and norm of every block as flat matrices of k rows: row i, column j for x0_i ⊙ W_ij x_l,j.

    ``pairs`` is the strength of both blocks of a pair together, which their own strengths do not tell.
    """
    pairs = [cross for cross in run.crosses if len(cross.features) == 2]
    if not pairs:
        return None
    names = list(dict.fromkeys(name for pair in pairs for name in pair.features))
    if len(names) ** 2 > 2 * len(pairs):
        raise RunError(
            f"{run.path / 'crosses.json'} must hold each pair of its {len(names):,} features; got {len(pairs):,} pairs."
        )
    number = {name: i for i, name in enumerate(names)}
    layers = []
    for _, group in groupby(pairs, key=lambda pair: (pair.network, pair.layer)):
        layer = list(group)
        matrices = {key: [0.0] * len(names) ** 2 for key in ("strengths", "norms", "pairs")}
        for pair in layer:
            i, j = (number[name] for name in pair.features)
            cells = [i * len(names) + j, j * len(names) + i]
            for key in ("strengths", "norms"):
                for cell, value in zip(cells, getattr(pair, key), strict=False):
                    matrices[key][cell] = short(value, digits=3)
            for cell in cells:
                matrices["pairs"][cell] = short(pair.strength, digits=3)
        layers.append({"label": place(layer[0], pairs), **matrices})
    return {"names": names, "layers": layers}


def place(one: Cross | Spectrum, among: Sequence[Cross | Spectrum]) -> str:
    """Where it stands; the network is named where there are several."""
    return f"network {one.network}, layer {one.layer}" if among[-1].network > 1 else f"layer {one.layer}"


def thin(points: Sequence[Any]) -> list[Any]:
    """At most MOST_POINTS of them, the first and the last among these.

    >>> thin(range(1000))[-2:]
    [996, 999]
    """
    if len(points) <= MOST_POINTS:
        return list(points)
    return [points[round(i * (len(points) - 1) / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]


def short(value: float, *, digits: int = 5) -> float:
    return float(f"{value:.{digits}g}")
