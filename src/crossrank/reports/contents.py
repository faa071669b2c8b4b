"""What a page says about a run, taken from its folder alone; what the folder lacks is None or empty."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from crossrank.files import read_json
from crossrank.runs import Run

MOST_POINTS = 400  # of a curve: as many as a wide screen can show


def run_contents(run: Run, name: str) -> dict[str, Any]:
    """The numbers behind a run's charts, as JSON."""
    return {
        "name": name,
        "label": {"name": run.schema.label.name, "kind": run.schema.label.kind},
        "learning": learning(run),
        "curves": optional(run, "curves.json"),
        "dependence": (optional(run, "importance.json") or {}).get("dependence", []),
        "crosses": crosses(run),
        "spectra": [
            {
                "label": _label(run, layer),
                **{key: thin([short(value) for value in layer[key]]) for key in ("initial", "values", "used")},
                "width": len(layer["values"]),
            }
            for layer in spectra(run)
        ],
    }


def learning(run: Run) -> dict[str, Any]:
    """The criterion by step: of training batches, and on validation rows with averaged and with raw weights."""
    real = run.schema.label.kind == "real"
    criterion = "rmse" if real else "logloss"
    lines = run.metrics
    checks = [line for line in lines if "valid" in line]
    return {
        "criterion": criterion,
        "best_step": run.report["training"]["best_step"],
        # The loss of a number is its squared error, whose root is the criterion.
        "train": thin(
            [[line["step"], short(line["loss"] ** 0.5 if real else line["loss"])] for line in lines if "loss" in line]
        ),
        "averaged": thin([[line["step"], short(line["valid"][criterion])] for line in checks]),
        "raw": thin([[line["step"], short(line["valid_raw"][criterion])] for line in checks]),
    }


def crosses(run: Run) -> dict[str, Any] | None:
    """Strength and norm of every block as flat matrices of k rows: row i, column j for x0_i ⊙ W_ij x_l,j.

    ``pairs`` is the strength of both blocks of a pair together, which their own strengths do not tell.
    """
    pairs = run.crosses
    if not pairs:
        return None
    names = list(dict.fromkeys(pair["left"] for pair in pairs))
    place = {name: i for i, name in enumerate(names)}
    layers = []
    for _, group in groupby(pairs, key=lambda pair: (pair["network"], pair["layer"])):
        layer = list(group)
        matrices = {key: [0.0] * len(names) ** 2 for key in ("strengths", "norms", "pairs")}
        for pair in layer:
            i, j = place[pair["left"]], place[pair["right"]]
            cells = [i * len(names) + j, j * len(names) + i]
            for key in ("strengths", "norms"):
                for cell, value in zip(cells, pair[key], strict=False):
                    matrices[key][cell] = short(value, digits=3)
            for cell in cells:
                matrices["pairs"][cell] = short(pair["strength"], digits=3)
        layers.append({"label": _label(run, layer[0]), **matrices})
    return {"names": names, "layers": layers}


def spectra(run: Run) -> list[dict[str, Any]]:
    """The layers of spectrum.json."""
    return list((optional(run, "spectrum.json") or {"layers": []})["layers"])


def optional(run: Run, name: str) -> Any:
    """A JSON file of the run, or None where it has none."""
    file = run.path / name
    return read_json(file) if file.is_file() else None


def _label(run: Run, layer: dict[str, Any]) -> str:
    several = run.config["model"].get("cross", {}).get("num_networks", 1) > 1
    return f"network {layer['network']}, layer {layer['layer']}" if several else f"layer {layer['layer']}"


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
