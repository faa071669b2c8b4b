"""The command line as a person uses it, and what it says when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import polars as pl
import pytest
from commands import SMALL, crossrank

from crossrank.models import MODELS
from crossrank.models.own import BUILT_IN
from crossrank.runs import Run


def test_evaluate_prints_one_json_object_and_nothing_else(place) -> None:
    words = [sys.executable, "-m", "crossrank", "evaluate", "runs/first", "clicks.csv", "--json"]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["rows"] == 2000
    for data in (["dataset"], []):
        output, _ = crossrank("evaluate", "runs/first", *data, "--json", cwd=place)
        metrics = json.loads(output)
        assert 0 < metrics["rows"] < 300
        assert metrics["logloss"] > 0
        assert 0 < metrics["auc"] < 1
        for name in ("logloss", "auc"):
            low, high = metrics["intervals"][name]
            assert low < metrics[name] < high


def test_evaluate_shows_the_intervals_of_log_loss_and_auc(place) -> None:
    for data in (["dataset"], []):
        output, _ = crossrank("evaluate", "runs/first", *data, cwd=place)
        assert "95% interval" in output
        assert {line.split()[1] for line in output.splitlines() if " to " in line} == {"logloss", "auc"}
    output, _ = crossrank(
        "evaluate", "runs/first", "--split", "valid", cwd=place
    )  # only those of the test rows are kept
    assert "95% interval" not in output


def test_explain_lists_what_single_features_are_worth(place) -> None:
    output, _ = crossrank("explain", "runs/first", "--features", "--json", cwd=place)
    features = json.loads(output)
    assert features == Run.open(place / "runs" / "first").importance
    output, _ = crossrank("explain", "runs/first", "--features", "--top", 2, cwd=place)
    assert "how much the log loss rises" in " ".join(output.split())
    assert [one["feature"] for one in features if f" {one['feature']} " in output] == [
        one["feature"] for one in features[:2]
    ]


def test_a_table_is_trained_on_without_a_schema(place) -> None:
    output, talk = crossrank("train", "clicks.csv", "--into", "runs/drafted", *SMALL, "--json", cwd=place)
    assert json.loads(output)["rows"] > 0
    assert "categorical: user" in talk
    assert (place / "runs" / "drafted" / "run.json").is_file()
    assert not (place / "runs" / "drafted" / "dataset").exists()


def test_predict_writes_the_table_with_a_probability(place) -> None:
    for name in ("scored.csv", "scored.parquet"):
        crossrank("predict", "runs/first", "clicks.csv", "--into", name, cwd=place)
    text, binary = pl.read_csv(place / "scored.csv"), pl.read_parquet(place / "scored.parquet")
    assert text.columns == [*pl.read_csv(place / "clicks.csv").columns, "probability"]
    assert text["probability"].is_between(0, 1).all()
    assert (text["probability"] - binary["probability"]).abs().max() < 1e-6
    _, problem = crossrank("predict", "runs/first", "clicks.csv", "--into", "scored.csv", cwd=place, code=2)
    assert "--overwrite" in problem


def test_a_predicted_number_is_not_called_a_probability(clicks, tmp_path) -> None:
    clicks.drop("click").with_columns(pl.col("price").fill_null(1.0)).write_csv(tmp_path / "prices.csv")
    words = ["--label", "price", "--into", "run", *SMALL, "--set", "training.max_steps=2"]
    crossrank("train", "prices.csv", *words, cwd=tmp_path)
    crossrank("predict", "run", "prices.csv", "--into", "scored.csv", cwd=tmp_path)
    assert pl.read_csv(tmp_path / "scored.csv").columns[-1] == "prediction"
    for words in (["--top", 2], ["--row", json.dumps(pl.read_csv(tmp_path / "prices.csv").row(0, named=True))]):
        output, talk = crossrank("explain", "run", *words, cwd=tmp_path)
        assert "moves the prediction" in " ".join(output.split()) and "logit" not in output + talk


def test_explain_lists_pairs_with_their_strength(place) -> None:
    output, _ = crossrank("explain", "runs/first", "--top", 3, "--json", cwd=place)
    pairs = json.loads(output)
    assert len(pairs) == 3
    assert {"left", "right", "strength", "layer"} <= set(pairs[0])
    output, _ = crossrank("explain", "runs/first", "--top", 3, cwd=place)
    assert f"{pairs[0]['left']} × {pairs[0]['right']}" in output


def test_profile_tells_where_the_time_of_a_step_goes(place) -> None:
    _, talk = crossrank("train", "dataset", "--into", "runs/profiled", "--profile", *SMALL, cwd=place)
    for part in ("load", "gather", "forward", "backward", "update", "average", "log"):
        assert f" {part} " in talk


def test_several_seeds_are_summed_up(place) -> None:
    output, _ = crossrank("train", "dataset", "--into", "runs/seeds", "--seeds", 2, *SMALL, "--json", cwd=place)
    summary = json.loads(output)
    assert summary["seeds"] == 2
    assert len(summary["test"]["logloss"]["values"]) == 2


def test_a_config_file_can_be_printed_edited_and_used(place) -> None:
    output, _ = crossrank("config", "dcn-mix", cwd=place)
    (place / "mix.toml").write_text(output)
    crossrank("train", "dataset", "--into", "runs/mix", "--config", "mix.toml", *SMALL, cwd=place)
    saved = json.loads((place / "runs" / "mix" / "config.json").read_text())
    assert saved["model"]["cross"]["layer"] == "mixture"
    assert saved["model"]["embedding"]["dim"] == 4


def test_models_are_listed_a_line_each() -> None:
    words = [sys.executable, "-m", "crossrank", "models"]  # into a pipe, taken for 80 columns
    done = subprocess.run(words, env=os.environ | {"COLUMNS": ""}, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        name for name in MODELS if name in BUILT_IN
    ]  # tests register others


def test_the_version_and_the_help_are_there() -> None:
    assert crossrank("--version")[0].strip()
    for command in ("demo", "prepare", "train", "evaluate", "predict", "explain"):
        assert "Example" in crossrank(command, "--help")[0]


BAD_TABLES = {
    "a missing column": ("user,click\na,1\nb,0\n", "country"),
    "a label of 2": ("LABEL2", "must be 0 or 1; got 2"),
    "an empty file": ("", "empty"),
    "a broken line": ("BROKEN", "Line 3 of bad.csv"),
    "a label that is missing": ("NOLABEL", "click"),
    "a number that is none": ("NOTNUMBER", "price"),
}


def bad_table(clicks, kind: str) -> str:
    text = clicks.head(30).write_csv()
    lines = text.splitlines()
    if kind == "BROKEN":
        lines[2] += ",more,and,more"
    elif kind == "LABEL2":
        lines[4] = lines[4].rsplit(",", 1)[0] + ",2"
    elif kind == "NOLABEL":
        lines[4] = lines[4].rsplit(",", 1)[0] + ","
    elif kind == "NOTNUMBER":
        return clicks.head(30).with_columns(pl.lit("cheap").alias("price")).write_csv()
    else:
        return kind
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_input_gets_one_line_a_hint_and_leaves_nothing(place, clicks, tmp_path, case) -> None:
    content, evidence = BAD_TABLES[case]
    (tmp_path / "bad.csv").write_text(bad_table(clicks, content))
    for command in (["prepare", "bad.csv", "--into", "out"], ["train", "bad.csv", "--into", "out", *SMALL]):
        output, problem = crossrank(*command, "--schema", place / "schema.json", cwd=tmp_path, code=2)
        assert output == ""
        assert "Traceback" not in problem
        assert problem.startswith("error: ")
        assert evidence in problem
        assert len(problem.strip().splitlines()) <= 2
        assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]


def test_wrong_words_are_met_with_the_nearest_right_ones(place) -> None:
    _, problem = crossrank("train", "dataset", "--into", "x", "--set", "model.cros.rank=3", cwd=place, code=2)
    assert "Did you mean 'model.cross.rank'?" in problem
    _, problem = crossrank("train", "dataset", "--into", "x", "--set", "model.name=dcnv2", cwd=place, code=2)
    assert "Did you mean 'dcn-v2'?" in problem
    _, problem = crossrank("train", "nowhere.csv", "--into", "x", cwd=place, code=2)
    assert "nowhere.csv" in problem
    _, problem = crossrank("evaluate", "nowhere", cwd=place, code=2)
    assert "no run.json" in problem
    _, problem = crossrank("train", "dataset", "--into", "runs/first", cwd=place, code=2)
    assert "hint: " in problem
    _, problem = crossrank("train", "dataset", "--into", "clicks.csv/run", cwd=place, code=2)
    assert "writable" in problem
    assert not (place / "x").exists()
