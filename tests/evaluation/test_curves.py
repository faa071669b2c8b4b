"""Curves kept beside a model, against the metrics they must agree with."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from crossrank.data.prepare import prepare
from crossrank.evaluation.curves import calibration, group_metrics, histogram, measure_curves, roc
from crossrank.evaluation.evaluate import evaluate
from crossrank.evaluation.findings import write_findings
from crossrank.evaluation.metrics import auc, measure, sigmoid
from crossrank.models import build_model, parse_model_settings
from crossrank.schema import Categorical, Label, Numeric, Schema


@pytest.fixture(scope="module")
def scored():
    random = np.random.default_rng(0)
    logits = random.normal(-1, 1.5, 5000).round(1)  # many ties
    return (random.random(5000) < sigmoid(logits)).astype(float), logits


def test_calibration_bins_hold_every_row_once(scored) -> None:
    labels, logits = scored
    found = calibration(labels, sigmoid(logits), bins=7)
    rows = np.array(found["rows"])
    assert rows.sum() == 5000
    assert rows.max() - rows.min() <= 1
    assert rows @ found["observed"] / 5000 == pytest.approx(labels.mean(), rel=1e-4)
    assert rows @ found["predicted"] / 5000 == pytest.approx(sigmoid(logits).mean(), rel=1e-4)
    assert found["predicted"] == sorted(found["predicted"])


def test_the_area_under_the_roc_is_the_auc(scored) -> None:
    found = roc(*scored)
    assert np.trapezoid(found["true"], found["false"]) == pytest.approx(auc(*scored), abs=1e-3)
    assert (found["false"][0], found["true"][0]) == (0, 0)
    assert (found["false"][-1], found["true"][-1]) == (1, 1)


def test_a_roc_of_many_scores_is_thinned() -> None:
    random = np.random.default_rng(0)
    labels, scores = (random.random(20_000) < 0.3).astype(float), random.normal(size=20_000)
    found = roc(labels, scores, points=50)
    assert 45 <= len(found["true"]) <= 51
    assert np.trapezoid(found["true"], found["false"]) == pytest.approx(auc(labels, scores), abs=2e-3)


@pytest.mark.parametrize("labels", [[], [1.0, 1.0]])
def test_one_class_has_no_roc(labels) -> None:
    assert roc(np.array(labels), np.zeros(len(labels))) == {"false": [], "true": []}


def test_a_histogram_counts_every_row_also_beyond_its_edges(scored) -> None:
    labels, logits = scored
    found = histogram(logits, {"negative": logits[labels == 0], "positive": logits[labels == 1]}, bins=10)
    assert len(found["edges"]) == 11
    assert sum(found["negative"]) == pytest.approx(1, abs=1e-5)
    assert sum(found["positive"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("values", [[], [2.0], [2.0, 2.0]])
def test_a_histogram_of_few_or_equal_values_is_a_histogram(values) -> None:
    found = histogram(np.array(values), {"all": np.array(values)}, bins=4)
    assert sum(found["all"]) == (1 if values else 0)


def test_groups_are_the_metrics_of_their_rows(scored) -> None:
    labels, logits = scored
    values = np.array([f"v{i % 7 * (i % 3)}" for i in range(5000)], object)
    for group in group_metrics(values, labels, logits, "binary"):
        mask = values == group["value"]
        expected = measure(labels[mask], logits[mask])
        assert {key: group[key] for key in expected} == expected
        assert group["mean_label"] == pytest.approx(labels[mask].mean())
        assert group["mean_answer"] == pytest.approx(sigmoid(logits[mask]).mean())


def test_rare_values_are_taken_together(scored) -> None:
    labels, logits = scored
    values = np.array([str(int(i**0.5)) for i in range(5000)], object)
    groups = group_metrics(values, labels, logits, "binary")
    assert [group["others"] for group in groups] == [0] * 12 + [len(set(values)) - 12]
    assert sum(group["rows"] for group in groups) == 5000
    frequent = [group["rows"] for group in groups[:-1]]
    assert frequent == sorted(frequent, reverse=True)


def test_the_curves_of_a_run_are_small_and_agree_with_its_metrics(run, dataset) -> None:
    curves = measure_curves(run.model, dataset.test, dataset.encoder)
    metrics = evaluate(run, dataset)
    assert curves["rows"] == metrics["rows"]
    assert np.trapezoid(curves["roc"]["true"], curves["roc"]["false"]) == pytest.approx(metrics["auc"], abs=5e-3)
    assert set(curves["groups"]) == {column.name for column in dataset.schema.categorical}
    for groups in curves["groups"].values():
        assert sum(group["rows"] for group in groups) == metrics["rows"]
    assert "<missing>" in {group["value"] for group in curves["groups"]["language"]}
    assert "<unseen>" in {group["value"] for group in curves["groups"]["user"]}
    assert len(json.dumps(curves)) < 60_000


def test_the_curves_of_many_rows_are_drawn_from_some_of_them(run, dataset, monkeypatch) -> None:
    import crossrank.evaluation.curves as module

    monkeypatch.setattr(module, "MOST_ROWS", 50)
    curves = measure_curves(run.model, dataset.test, dataset.encoder)
    assert curves["rows"] == sum(curves["calibration"]["rows"]) == 50
    places = np.linspace(0, dataset.test.num_rows - 1, 50).astype(int)
    assert {group["rows"] for group in curves["groups"]["device"]} <= set(range(51))
    rate = np.average(curves["calibration"]["observed"], weights=curves["calibration"]["rows"])
    assert rate == pytest.approx(dataset.test.labels[places].mean(), abs=1e-4)


def test_a_label_that_is_a_number_has_curves_too(tmp_path) -> None:
    random = np.random.default_rng(0)
    frame = pl.DataFrame({"kind": random.integers(0, 3, 300), "size": random.normal(size=300)})
    frame = frame.with_columns(price=2 * pl.col("size") + pl.col("kind"))
    schema = Schema([Categorical(name="kind"), Numeric(name="size")], Label(name="price", kind="real"))
    dataset = prepare(frame, schema, tmp_path / "dataset")
    model = build_model(parse_model_settings({"embedding": {"dim": 2}}), dataset.features)
    write_findings(tmp_path, model, dataset)
    curves = json.loads((tmp_path / "curves.json").read_text())
    assert (curves["kind"], curves["split"]) == ("real", "test")
    assert set(curves["scores"]) == {"edges", "answers", "labels"}
    assert "roc" not in curves
    assert {"rmse", "r2"} <= set(curves["groups"]["kind"][0])


def test_findings_hold_crosses_spectra_and_curves(run, dataset, tmp_path) -> None:
    initial = [{"network": 1, "layer": 1, "values": [1.0]}]
    write_findings(tmp_path, run.model, dataset, split="valid", initial=initial)
    assert {path.name for path in tmp_path.iterdir()} == {"crosses.json", "spectrum.json", "curves.json"}
    layers = json.loads((tmp_path / "spectrum.json").read_text())["layers"]
    assert [layer["initial"] for layer in layers] == [[1.0], []]
    assert json.loads((tmp_path / "curves.json").read_text())["split"] == "valid"
