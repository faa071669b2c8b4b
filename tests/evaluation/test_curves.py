"""Curves kept beside a model, against the metrics they must agree with."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import polars as pl
import pytest

from crossrank.data import Split
from crossrank.data.prepare import prepare
from crossrank.evaluation.curves import calibration, group_metrics, histogram, measure_curves, number_ranges
from crossrank.evaluation.evaluate import evaluate, score_split
from crossrank.evaluation.findings import write_findings
from crossrank.evaluation.intervals import measure_intervals
from crossrank.evaluation.metrics import measure, sigmoid
from crossrank.models import build_model, parse_model_settings
from crossrank.results import Spectrum
from crossrank.schema import Categorical, Label, Numeric, Schema


@pytest.fixture(scope="module")
def scored():
    random = np.random.default_rng(0)
    logits = random.normal(-1, 1.5, 5000).round(1)  # many ties
    return (random.random(5000) < sigmoid(logits)).astype(float), logits


def test_calibration_bins_hold_every_row_once(scored) -> None:
    labels, logits = scored
    found = calibration(labels, sigmoid(logits), np.ones(5000), bins=7)
    rows = np.array(found["rows"])
    assert rows.sum() == 5000
    assert rows.max() - rows.min() <= 1
    assert rows @ found["observed"] / 5000 == pytest.approx(labels.mean(), rel=1e-4)
    assert rows @ found["predicted"] / 5000 == pytest.approx(sigmoid(logits).mean(), rel=1e-4)
    assert found["predicted"] == sorted(found["predicted"])


def test_a_histogram_counts_every_row_also_beyond_its_edges(scored) -> None:
    labels, logits = scored
    parts = {"negative": logits[labels == 0], "positive": logits[labels == 1]}
    found = histogram(logits, {name: (part, np.ones(len(part))) for name, part in parts.items()}, bins=10)
    assert len(found["edges"]) == 11
    assert sum(found["negative"]) == pytest.approx(1, abs=1e-5)
    assert sum(found["positive"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("values", [[], [2.0], [2.0, 2.0]])
def test_a_histogram_of_few_or_equal_values_is_a_histogram(values) -> None:
    found = histogram(np.array(values), {"all": (np.array(values), np.ones(len(values)))}, bins=4)
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


def test_ranges_of_a_number_hold_every_row_once_and_name_their_ends() -> None:
    numbers = np.random.default_rng(0).gamma(2.0, 30.0, 4000).round()
    numbers[::10] = np.nan
    ranges = list(number_ranges(numbers))
    assert (np.sum([mask for _, mask in ranges], axis=0) == 1).all()
    for name, mask in ranges[:-1]:
        low, high = map(float, name.split(" to "))
        assert (low, high) == (numbers[mask].min(), numbers[mask].max())
        assert 300 <= mask.sum() <= 600  # an eighth of 3,600, but for ties
    assert ranges[-1][0] == "<missing>"
    assert np.isnan(numbers[ranges[-1][1]]).all()


@pytest.mark.parametrize(
    ("numbers", "names"),
    [([], []), ([np.nan], ["<missing>"]), ([0.0, 1.0, 1.0], ["0", "1"]), ([2.0] * 30, ["2"])],
)
def test_few_numbers_stand_alone(numbers, names) -> None:
    assert [name for name, _ in number_ranges(np.array(numbers))] == names


def test_numeric_groups_are_in_raw_units_and_know_what_is_missing(run, dataset, clicks) -> None:
    groups = measure_curves(run.model, dataset.test, dataset.encoder)["groups"]["price"]
    raw = dataset.encoder.decode(dataset.test.rows.encoded)["price"]
    assert groups[-1]["value"] == "<missing>"
    assert 0 < groups[-1]["rows"] < clicks["price"].null_count()
    assert float(groups[0]["value"].split(" to ")[0]) == pytest.approx(min(raw), rel=1e-3)
    assert float(groups[-2]["value"].split(" to ")[1]) == pytest.approx(max(raw), rel=1e-3)


def test_curves_count_weights_and_leave_out_rows_that_weigh_nothing(run, dataset) -> None:
    rows = dataset.test.rows
    weights = np.random.default_rng(0).choice([0.0, 1.0, 2.0], len(rows)).astype(np.float32)
    logits = score_split(run.model, dataset.test)
    weighted = Split(dataclasses.replace(rows, weights=weights))
    curves = measure_curves(run.model, weighted, dataset.encoder, logits=logits)
    repeated = np.repeat(np.arange(len(rows)), weights.astype(int))
    expected = measure_curves(run.model, Split(rows.take(repeated)), dataset.encoder, logits=logits[repeated])
    assert curves["rows"] == np.count_nonzero(weights)
    for name in ("roc", "precision_recall", "lift"):
        for axis in curves[name]:
            assert curves[name][axis] == pytest.approx(expected[name][axis], abs=1e-5)
    assert curves["thresholds"] == [pytest.approx(row) for row in expected["thresholds"]]
    for group, other in zip(curves["groups"]["price"], expected["groups"]["price"], strict=True):
        if group["value"] == other["value"]:
            assert (group["auc"], group["mean_label"]) == pytest.approx((other["auc"], other["mean_label"]))


def test_the_intervals_of_curves_are_those_of_all_rows_whose_answers_are_known(run, dataset, monkeypatch) -> None:
    monkeypatch.setattr("crossrank.evaluation.curves.MOST_ROWS", 50)
    logits = score_split(run.model, dataset.test)
    curves = measure_curves(run.model, dataset.test, dataset.encoder, logits=logits)
    assert curves["rows"] == 50
    assert curves["intervals"] == measure_intervals(dataset.test.labels, logits)


def test_the_curves_of_a_run_are_small_and_agree_with_its_metrics(run, dataset) -> None:
    curves = measure_curves(run.model, dataset.test, dataset.encoder)
    metrics = evaluate(run, dataset)
    assert curves["rows"] == metrics["rows"]
    assert np.trapezoid(curves["roc"]["true"], curves["roc"]["false"]) == pytest.approx(metrics["auc"], abs=5e-3)
    columns = [*dataset.schema.categorical, *dataset.schema.numeric]
    assert list(curves["groups"]) == [column.name for column in columns]
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
    assert not {"roc", "precision_recall", "lift", "thresholds"} & set(curves)
    assert set(curves["residuals"]) == {"edges", "residuals"}
    answers = score_split(model, dataset.test)
    assert curves["predicted_actual"]["predicted"] == pytest.approx(answers.tolist(), rel=1e-4)
    assert curves["predicted_actual"]["actual"] == pytest.approx(dataset.test.labels.tolist(), rel=1e-4)
    residuals = dataset.test.labels - answers
    middles = np.add(curves["residuals"]["edges"][1:], curves["residuals"]["edges"][:-1]) / 2
    width = middles[1] - middles[0]
    assert middles @ curves["residuals"]["residuals"] == pytest.approx(residuals.mean(), abs=width)
    assert set(curves["intervals"]) == {"rmse", "r2"}
    assert {"rmse", "r2"} <= set(curves["groups"]["kind"][0])


def test_findings_hold_crosses_spectra_and_curves(run, dataset, tmp_path) -> None:
    initial = [Spectrum(network=1, layer=1, values=(1.0,), used=())]
    write_findings(tmp_path, run.model, dataset, split="valid", initial=initial)
    assert {path.name for path in tmp_path.iterdir()} == {
        "crosses.json",
        "spectrum.json",
        "curves.json",
        "importance.json",
    }
    layers = json.loads((tmp_path / "spectrum.json").read_text())["layers"]
    assert [layer["initial"] for layer in layers] == [[1.0], []]
    assert json.loads((tmp_path / "curves.json").read_text())["split"] == "valid"
