"""Findings as evaluation writes them, from a handful of made-up rows: a report only draws them."""

from __future__ import annotations

import json

import numpy as np

from crossrank.evaluation.curves import histogram

LEVELS = np.linspace(0.1, 0.9, 9)


def curves_of(kind: str) -> dict:
    """What curves.json gains beside calibration, scores, ROC and groups."""
    random = np.random.default_rng(0)
    if kind == "real":
        actual = random.normal(2, 3, 200)
        predicted = actual + random.normal(0, 1, 200)
        return {
            "intervals": {"rmse": [0.9, 1.1], "r2": [0.85, 0.92]},
            "predicted_actual": {"predicted": predicted.tolist(), "actual": actual.tolist()},
            "residuals": histogram(actual - predicted, {"residuals": actual - predicted}),
        }
    return {
        "intervals": {"logloss": [0.4123, 0.5321], "auc": [0.6, 0.7]},
        "precision_recall": {"recall": [0.0, *LEVELS, 1.0], "precision": [1.0, *(1 - 0.8 * LEVELS), 0.2]},
        "lift": {"share": [*LEVELS, 1.0], "lift": [*(3 - 2 * LEVELS), 1.0]},
        "thresholds": [
            {"threshold": t, "share": 1 - t, "precision": t, "recall": 1 - t, "f1": 2 * t * (1 - t)} for t in LEVELS
        ],
    }


def importance_of(names, metric: str = "logloss") -> dict:
    """The content of importance.json for these features, strongest first; every second one is a number."""
    features = [
        {"feature": name, "importance": 0.1 / 2**place - 1e-5, "deviation": 0.001} for place, name in enumerate(names)
    ]
    numbers = [{"value": value, "share": 0.2, "mean": 0.2 + 0.05 * value} for value in range(5)]
    texts = [{"value": f"value {i} of many", "share": 0.5 / (i + 1), "mean": 0.2 + 0.03 * i} for i in range(4)]
    dependence = [
        {"feature": name, **({"kind": "numeric", "points": numbers} if i % 2 else {"kind": "categorical", "points": texts})}
        for i, name in enumerate(names[:4])
    ]
    about = {"split": "test", "metric": metric, "rows": 200, "repeats": 5, "base": 0.4567}
    return {**about, "features": features, "dependence": dependence}


def add_findings(run) -> None:
    """Write them into the folder of a run."""
    kind = run.schema.label.kind
    file = run.path / "curves.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **curves_of(kind)}))
    found = importance_of(run.encoder.schema.names, "rmse" if kind == "real" else "logloss")
    (run.path / "importance.json").write_text(json.dumps(found))
