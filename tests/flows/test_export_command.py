"""crossrank export, as a person meets it."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
from commands import crossrank

import crossrank as cr


def test_a_run_is_exported_and_answers_as_predict_does(place) -> None:
    output, talk = crossrank("export", "runs/first", "--into", "bundles/first", "--data", "dataset", cwd=place)
    assert "validation rows" in output and "largest difference" in output and "loss difference" in output
    assert "bundle: bundles/first (" in talk and "MB, float32)" in talk
    crossrank("predict", "runs/first", "clicks.csv", "--into", "scored.csv", cwd=place)
    scorer = cr.Scorer.open(place / "bundles/first")
    scored = pl.read_csv(place / "scored.csv")["probability"]
    np.testing.assert_allclose(scorer.score(place / "clicks.csv"), scored, atol=1e-6)

    _, talk = crossrank("export", "runs/first", "--into", "bundles/first", cwd=place, code=2)
    assert "must not exist yet" in talk and "--overwrite" in talk
    words = ("--into", "bundles/first", "--precision", "int8", "--overwrite", "--json")
    output, _ = crossrank("export", "runs/first", *words, cwd=place)
    found = json.loads(output)
    assert found["precision"] == "int8" and found["source"] == "drawn from the encoder"
    assert abs(found["loss_difference"]) < 2e-4


def test_what_cannot_be_exported_is_said_in_a_line(place) -> None:
    _, talk = crossrank("export", "nowhere", "--into", "bundles/none", cwd=place, code=2)
    assert "must be a run folder" in talk
    _, talk = crossrank("export", "runs/first", "--into", "bundles/none", "--precision", "int4", cwd=place, code=2)
    assert "int8" in talk
    _, talk = crossrank("export", "runs/first", "--into", "bundles/none", "--data", "nothing.csv", cwd=place, code=2)
    assert "nothing.csv" in talk and not (place / "bundles/none").exists()
