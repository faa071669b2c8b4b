"""The page as a file: what stands in it, what it must never hold, how large it is."""

from __future__ import annotations

import hashlib
import html
import json
import re
import shutil

import numpy as np
import polars as pl
import pytest

from crossrank.data.prepare import prepare
from crossrank.errors import ConfigError, DataError
from crossrank.evaluation.metrics import measure, sigmoid
from crossrank.experiments.compress import compress
from crossrank.reports import write_report
from crossrank.reports.contents import learning
from crossrank.reports.markup import amount, decimal
from crossrank.reports.page import ASSETS
from crossrank.runs import Run

# As published: d3 7.9.2 and @observablehq/plot 0.6.17 of the npm registry, dist/.
LIBRARIES = {
    "d3.min.js": "912111098ea99503a6f4967361d2bbdc9dbf58cf9c678c8e27e5b02d1a07f0c1",
    "plot.umd.min.js": "4358086467740777dd788d6b27a95cebdbaefdd50c730a3060117073bd7134cb",
}


def content_of(path) -> dict:
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id="content">(.*?)</script>', text, re.DOTALL)[1])


def words_of(path) -> str:
    """The visible text."""
    page = re.sub(r"<(script|style).*?</\1>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)))


@pytest.fixture(scope="module")
def page(crossed, tmp_path_factory):
    return write_report(crossed, tmp_path_factory.mktemp("page") / "report.html")


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_chart_libraries_are_the_published_files_with_their_licences(page, name) -> None:
    content = (ASSETS / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == LIBRARIES[name]
    licence = (ASSETS / f"{name.split('.')[0]}.LICENSE.txt").read_text()
    assert "Permission to use, copy, modify" in licence
    assert licence in page.read_text(encoding="utf-8")


def test_a_page_says_what_the_run_measured_cost_and_was_made_of(page, crossed) -> None:
    words = words_of(page)
    metrics = crossed.report["test"]
    for expected in (
        f"{metrics['logloss']:.4f}",
        f"{metrics['auc']:.4f}",
        f"On {metrics['rows']:,} test rows",
        "dcn-v2, parallel; 34 inputs; 2 full cross layers; deep layers of 8.",
        "the label is click (binary)",
        "keeps 99% of the energy",
        crossed.info["data_fingerprint"],
        f"--seed {crossed.info['seed']}",
        "learning_rate = 0.01",
        *crossed.schema.names,
    ):
        assert expected in words, expected


def test_a_page_needs_no_network(page) -> None:
    text = page.read_text(encoding="utf-8")
    markup = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:|//)", markup)
    assert "@import" not in markup
    assert "url(" not in markup
    assert "default-src 'none'" in text


def test_the_map_holds_every_block_of_every_layer(page, crossed) -> None:
    crosses = content_of(page)["runs"][0]["crosses"]
    names, layers = crosses["names"], crosses["layers"]
    assert names == list(crossed.model.layout.names)
    assert [layer["label"] for layer in layers] == ["layer 1", "layer 2"]
    for pair in crossed.crosses:
        layer, i, j = layers[pair["layer"] - 1], names.index(pair["left"]), names.index(pair["right"])
        k = len(names)
        assert layer["pairs"][i * k + j] == layer["pairs"][j * k + i] == pytest.approx(pair["strength"], rel=6e-3)
        assert layer["strengths"][i * k + j] == pytest.approx(pair["strengths"][0], rel=6e-3)
        assert layer["strengths"][j * k + i] == pytest.approx(pair["strengths"][-1], rel=6e-3)
        assert layer["norms"][j * k + i] == pytest.approx(pair["norms"][-1], rel=6e-3)


def test_learning_curves_are_the_lines_of_the_journal(crossed) -> None:
    found = learning(crossed)
    checks = [line for line in crossed.metrics if "valid" in line]
    assert [step for step, _ in found["averaged"]] == [line["step"] for line in checks]
    assert [value for _, value in found["raw"]] == pytest.approx(
        [line["valid_raw"]["logloss"] for line in checks], rel=1e-4
    )
    assert found["train"][0][1] == pytest.approx(next(line["loss"] for line in crossed.metrics), rel=1e-4)


def test_runs_of_the_same_data_stand_beside_as_baselines(trio, tmp_path) -> None:
    words = words_of(write_report(trio[0], tmp_path / "report.html"))
    assert "than dnn, the best baseline" in words  # another seed of the same setting is none
    assert "seed-1" in words


def test_several_runs_stand_side_by_side_with_what_differs(trio, tmp_path) -> None:
    path = write_report([trio[0].path, trio[2].path], tmp_path / "report.html")
    words = words_of(path)
    assert "Comparison of seed-0, dnn" in words
    assert 'model.name "dcn-v2" "dnn"' in words
    assert [run["name"] for run in content_of(path)["runs"]] == ["seed-0", "dnn"]
    assert content_of(path)["runs"][1]["crosses"] is None


def test_a_folder_of_seeds_shows_which_pairs_hold_up(trio, tmp_path) -> None:
    folder = tmp_path / "seeds"
    for run in trio[:2]:
        shutil.copytree(run.path, folder / run.path.name)
    path = write_report(folder)
    words = words_of(path)
    assert path == folder / "report.html"
    assert "Which pairs hold up over 2 seeds" in words
    assert "mean ± deviation" in words
    values = [run.report["test"]["logloss"] for run in trio[:2]]
    assert f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}" in words


def test_a_page_stands_in_the_runs_folder_unless_told_otherwise(crossed, trio, tmp_path) -> None:
    shutil.copytree(crossed.path, tmp_path / "runs" / "one")
    shutil.copytree(trio[0].path, tmp_path / "runs" / "two")
    runs = [tmp_path / "runs" / "one", tmp_path / "runs" / "two"]
    assert write_report(runs[0]) == runs[0] / "report.html"
    assert write_report(runs) == tmp_path / "runs" / "comparison.html"
    Run.open(runs[0])  # the page does not disturb the run


def test_a_run_without_curves_spectra_and_crosses_still_has_a_page(crossed, tmp_path) -> None:
    shutil.copytree(crossed.path, tmp_path / "bare")
    for name in ("curves.json", "spectrum.json", "crosses.json"):
        (tmp_path / "bare" / name).unlink()
    content = content_of(write_report(tmp_path / "bare"))["runs"][0]
    assert (content["curves"], content["crosses"], content["spectra"]) == (None, None, [])


def test_a_compressed_run_shows_before_and_after(crossed, dataset, tmp_path) -> None:
    found = compress(crossed, into=tmp_path / "narrow", rank=3, dataset=dataset)
    words = words_of(write_report(found.run))
    assert "Compressed from small to cross layers of rank 3" in words
    assert f"{found.before['parameters']:,} {found.after['parameters']:,}" in words
    bare = compress(crossed, into=tmp_path / "unmeasured", rank=3)
    words = words_of(write_report(bare.run))
    assert "This run was not measured" in words
    assert "click: not measured, data" in words  # beside its sibling, in a table of its own


def test_the_breakdown_begins_with_the_chosen_column(crossed, tmp_path) -> None:
    assert content_of(write_report(crossed, tmp_path / "r.html", group_column="device"))["column"] == "device"
    with pytest.raises(ConfigError, match=r"got 'devise'.*Did you mean 'device'"):
        write_report(crossed, tmp_path / "r.html", group_column="devise")


def test_other_rows_can_be_shown_by_any_column_of_theirs(crossed, clicks, tmp_path) -> None:
    table = clicks.head(400).with_columns(pl.Series("page", ["a", "b", None, "a"] * 100))
    path = write_report(crossed, tmp_path / "r.html", data=table, group_column="page")
    curves = content_of(path)["runs"][0]["curves"]
    assert (curves["rows"], curves["split"]) == (400, "given")
    groups = {group["value"]: group for group in curves["groups"]["page"]}
    assert {name: group["rows"] for name, group in groups.items()} == {"a": 200, "b": 100, "<missing>": 100}
    rows = table.filter(pl.col("page") == "b")
    scores = crossed.predict(rows).astype(float)
    expected = measure(rows["click"].to_numpy(), np.log(scores / (1 - scores)))
    assert groups["b"]["logloss"] == pytest.approx(expected["logloss"], rel=1e-4)
    assert groups["b"]["mean_answer"] == pytest.approx(sigmoid(np.log(scores / (1 - scores))).mean(), rel=1e-4)


def test_an_encoded_dataset_must_be_the_runs(crossed, dataset, clicks, tmp_path) -> None:
    content = content_of(write_report(crossed, tmp_path / "r.html", data=dataset.path))["runs"][0]
    assert content["curves"]["rows"] == dataset.num_rows["test"]
    other = prepare(clicks.head(300), dataset.schema, tmp_path / "other")
    with pytest.raises(DataError, match="its encoder is another"):
        write_report(crossed, tmp_path / "r.html", data=other)


def test_a_number_is_reported_by_its_own_metrics(numbers, tmp_path) -> None:
    path = write_report(numbers, tmp_path / "report.html")
    metrics = numbers.report["test"]
    words = words_of(path)
    assert f"RMSE {amount(metrics['rmse'])}" in words
    assert f"R² {decimal(metrics['r2'])}" in words
    assert "log loss " not in words.partition("Learning curves")[0]
    assert content_of(path)["runs"][0]["learning"]["criterion"] == "rmse"


def test_a_page_about_a_number_speaks_of_its_label_and_never_of_probabilities(measured, tmp_path) -> None:
    words = words_of(write_report(measured[1], tmp_path / "report.html")).replace("positive_weight", "")  # a setting
    assert "in units of price" in words
    assert "adds to the prediction" in words
    for foreign in ("probabilit", "logit", "log loss", "positive", "ROC"):
        assert foreign not in words, foreign


def test_the_training_curve_of_a_number_is_in_units_of_its_label(numbers) -> None:
    losses = [line["loss"] for line in numbers.metrics if "loss" in line]
    assert [value for _, value in learning(numbers)["train"]] == pytest.approx(np.sqrt(losses), rel=1e-4)


def test_a_number_of_any_size_is_shown_by_its_leading_digits(numbers, tmp_path) -> None:
    run = Run.open(shutil.copytree(numbers.path, tmp_path / "run"))
    report = run.report
    report["test"] |= {"rmse": 48213.2871, "r2": -0.25}
    (run.path / "report.json").write_text(json.dumps(report))
    words = words_of(write_report(run))
    assert "RMSE 48,213 root" in words
    assert "R² −0.2500" in words
    assert "worse than always answering the mean" in words


def test_a_regression_and_a_classification_stand_on_one_page_in_tables_of_their_own(measured, tmp_path) -> None:
    path = write_report(measured, tmp_path / "report.html")
    text, words = path.read_text(encoding="utf-8"), words_of(path)
    assert [run["label"] for run in content_of(path)["runs"]] == [
        {"name": "click", "kind": "binary"},
        {"name": "price", "kind": "real"},
    ]
    titles = re.findall(r"<h3>(\w+): ([\d,]+) test rows, data \w{8}</h3>", text)
    assert titles == [(run.schema.label.name, f"{run.report['test']['rows']:,}") for run in measured]
    assert "adds to the logit or prediction" in words
    assert "Bold: the best" not in words  # of one run in each table
    for feature in ("kind", "size", *measured[0].schema.names):  # the data of both
        assert re.search(rf'<td class="wrap">{feature}</td><td>(categorical|numeric|multivalent)</td>', text)


@pytest.mark.parametrize("which", ["crossed", "dnn", "both"])
def test_the_menu_names_the_sections_that_have_something_to_show(which, measured, trio, tmp_path) -> None:
    runs = {"crossed": measured[0], "dnn": trio[2], "both": [trio[2], measured[0]]}[which]
    text = write_report(runs, tmp_path / "report.html").read_text(encoding="utf-8")
    listed = re.findall(r'<a href="#(\w+)">', text)
    shown = re.findall(r'<section id="(\w+)">', text)
    assert listed == shown
    assert ("crosses" in listed, "spectra" in listed, "features" in listed) == ((which != "dnn"),) * 3


def rows_of(path) -> list[list[str]]:
    """The rows of the first table, as markup."""
    body = re.search(r"<tbody>(.*?)</tbody>", path.read_text(encoding="utf-8"), re.DOTALL)[1]
    return [re.findall(r"<td.*?>(.*?)</td>", row) for row in body.split("</tr>")[:-1]]


def test_a_comparison_marks_the_best_of_each_metric_and_how_far_the_others_are(trio, tmp_path) -> None:
    runs = [trio[0], trio[2]]
    rows = rows_of(write_report(runs, tmp_path / "report.html"))
    first, second = sorted(run.report["test"]["logloss"] for run in runs)
    assert [row[2] for row in rows] == [f"<b>{first:.4f}</b>", f"{second:.4f}"]
    assert [row[3] for row in rows] == ["best", f"+{second - first:.4f}"]
    best = max(run.report["test"]["auc"] for run in runs)
    assert [row[4] for row in rows].count(f"<b>{best:.4f}</b>") == 1
    seeds = rows_of(write_report(trio[:2], tmp_path / "seeds.html"))
    assert "<b>" not in str(seeds)  # one setting; which seed was lucky says nothing


def test_runs_measured_on_other_rows_are_no_baselines(trio, tmp_path) -> None:
    for run in trio:
        shutil.copytree(run.path, tmp_path / run.path.name)
    one, two, three = (tmp_path / run.path.name for run in trio)
    info = json.loads((two / "run.json").read_text())
    (two / "run.json").write_text(json.dumps(info | {"data_fingerprint": "another"}))
    report = json.loads((three / "report.json").read_text())
    del report["test"]
    (three / "report.json").write_text(json.dumps(report))
    words = words_of(write_report(one))
    assert "the best baseline" not in words  # the one is of other data, the other has no test rows
    assert "seed-1" not in words
    assert f"{report['valid']['rows']:,} valid rows, data" in words


def test_a_damaged_neighbour_does_not_spoil_a_report(trio, tmp_path) -> None:
    for run in trio[:2]:
        shutil.copytree(run.path, tmp_path / run.path.name)
    for wrong in ("{", "[]", "null", '{"test": {"rows": "<b>"}}', "[" * 5000):
        (tmp_path / "seed-1" / "report.json").write_text(wrong)
        with pytest.warns(UserWarning, match=r"seed-1 is left out of the report: .*report\.json"):
            assert "seed-1" not in words_of(write_report(tmp_path / "seed-0"))


def test_metrics_have_intervals_where_they_were_measured(measured, crossed, tmp_path) -> None:
    words = words_of(write_report(measured[0], tmp_path / "report.html"))
    assert words.count("0.4123 to 0.5321") == 2  # large, and in the table
    assert "95% interval 0.9000" not in words
    assert "95% interval 0.90000 to 1.1000" in words_of(write_report(measured[1], tmp_path / "report.html"))
    folder = shutil.copytree(measured[0].path, tmp_path / "alone" / "run")
    curves = json.loads((folder / "curves.json").read_text())
    (folder / "curves.json").write_text(json.dumps(curves | {"split": "valid"}))
    assert "interval" not in words_of(write_report(folder))  # of other rows than the metrics


def test_importance_is_listed_with_bars_and_folded_where_it_is_long(measured, tmp_path) -> None:
    path = write_report(measured[0], tmp_path / "report.html")
    text, words = path.read_text(encoding="utf-8"), words_of(path)
    assert "log loss rises from 0.4567 when the values of one feature are shuffled" in words
    assert "200 test rows; mean and deviation of 5 shuffles" in words
    names = measured[0].schema.names
    section = text.partition('<section id="features">')[2].partition("</section>")[0]
    assert re.findall(r'<td class="wrap">(\w+)</td>', section) == list(names)
    widths = [float(width) for width in re.findall(r'class="bar" style="width: ([\d.]+)rem"', section)]
    assert widths[:3] == pytest.approx([8, 4, 2], abs=0.02)
    assert [one["feature"] for one in content_of(path)["runs"][0]["dependence"]] == list(names[:4])
    assert "<details>" not in section
    found = importance_file(measured[0], tmp_path / "long", num_features=25)
    assert "The other 5 features" in words_of(write_report(found))


def importance_file(run, folder, *, num_features: int):
    shutil.copytree(run.path, folder)
    file = folder / "importance.json"
    found = json.loads(file.read_text())
    found["features"] = [{"feature": f"f{i}", "importance": -1e-4, "deviation": 0.0} for i in range(num_features)]
    file.write_text(json.dumps(found))
    return folder


def test_importance_of_several_runs_stands_side_by_side(measured, tmp_path) -> None:
    text = write_report(measured, tmp_path / "report.html").read_text(encoding="utf-8")
    section = text.partition('<section id="features">')[2].partition("</section>")[0]
    assert "clicks, log loss</th>" in section
    assert "prices, RMSE</th>" in section
    assert '<td class="wrap">size</td><td>–</td><td>' in section  # a feature of the regression alone


def test_no_run_is_an_error(tmp_path) -> None:
    with pytest.raises(ConfigError, match="at least one run"):
        write_report([], tmp_path / "r.html")


def test_names_from_the_data_cannot_become_markup(make_run, tmp_path) -> None:
    hostile = "</script><script>alert({})</script>&<b>"
    path = write_report(make_run(3, tmp_path, name=hostile), tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    assert "<script>alert(" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;&lt;b&gt;" in text
    assert content_of(path)["runs"][0]["crosses"]["names"][1] == hostile.format(1)


def test_a_page_of_forty_features_is_below_two_megabytes(make_run, tmp_path) -> None:
    path = write_report(make_run(40, tmp_path), tmp_path / "report.html")
    assert path.stat().st_size < 2e6


@pytest.mark.slow
def test_a_page_of_two_hundred_features_is_below_five_megabytes(make_run, tmp_path) -> None:
    path = write_report(make_run(200, tmp_path), tmp_path / "report.html")
    assert path.stat().st_size < 5e6
