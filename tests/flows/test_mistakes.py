"""What a person may get wrong: what cannot be done is refused, and the hint helps."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import zipfile

import polars as pl
import pytest
import typer
from commands import SMALL, crossrank

import crossrank as library
from crossrank.cli import app

STEPS = ["--set", "training.max_steps=2"]


def test_a_split_that_a_dataset_was_not_made_with_is_refused_and_its_own_is_recorded(place) -> None:
    by_time = ["--set", "split.method=time"]
    crossrank("prepare", "clicks.csv", "--schema", "schema.json", "--into", "by-time", *by_time, cwd=place)
    for dataset, wanted in (("dataset", "time"), ("by-time", "random")):
        words = ["train", dataset, "--into", "runs/x", "--set", f"split.method={wanted}", *SMALL]
        _, problem = crossrank(*words, cwd=place, code=2)
        assert f"got split.method='{wanted}'" in problem and "hint: Leave the split out" in problem
        assert not (place / "runs" / "x").exists()
    for into, words in (("silent", []), ("said", by_time)):
        crossrank("train", "by-time", "--into", f"runs/{into}", *words, *SMALL, *STEPS, cwd=place)
        saved = json.loads((place / "runs" / into / "config.json").read_text())
        assert saved["split"]["method"] == "time"


def test_options_that_would_be_ignored_are_refused(place) -> None:
    for words in (
        ["train", "dataset", "--into", "x", "--label", "click"],
        ["train", "dataset", "--into", "x", "--schema", "schema.json"],
        ["train", "dataset", "--into", "x", "--seeds", 2, "--seed", 3],
        ["train", "dataset", "--into", "x", "--seeds", 2, "--profile"],
        ["prepare", "clicks.csv", "--into", "x", "--source", "criteo", "--label", "click"],
        ["evaluate", "runs/first", "clicks.csv", "--split", "train"],
    ):
        _, problem = crossrank(*words, cwd=place, code=2)
        assert "does not go with" in problem and "hint: Leave --" in problem
    _, problem = crossrank("evaluate", "runs/first", "--split", "train", cwd=place, code=2)
    assert "keeps the metrics of 'valid', 'test'; got 'train'" in problem


@pytest.mark.parametrize(
    ("command", "word", "nearest"),
    [
        ("prepare clicks.csv --into x", "spilt.method=time", "split.method"),
        ("train dataset --into x", "learning_rate=0.1", "training.learning_rate"),
        ("train dataset --into x", "model.learning_rate=0.1", "training.learning_rate"),
        ("train dataset --into x", "model.num_layers=3", "model.cross.num_layers"),
        ("cost", "modl.name=dnn", "model.name"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest(place, command, word, nearest) -> None:
    _, problem = crossrank(*command.split(), "--set", word, cwd=place, code=2)
    assert f"Did you mean '{nearest}'?" in problem


def test_seeds_of_other_settings_or_data_are_not_mixed(place, clicks, tmp_path) -> None:
    shutil.copytree(place / "runs" / "first", tmp_path / "runs" / "seed-0")
    words = ["train", place / "dataset", "--into", "runs", "--seeds", 2, *SMALL]
    _, problem = crossrank(*words, "--set", "training.batch_size=32", cwd=tmp_path, code=2)
    assert "in runs/seed-0 training.batch_size was 64 and is 32" in problem
    clicks.head(1500).write_csv(tmp_path / "fewer.csv")
    words[1] = "fewer.csv"
    _, problem = crossrank(*words, "--schema", place / "schema.json", "--ensemble", 1, cwd=tmp_path, code=2)
    assert "in runs/seed-0 training.average_decay was 0.96" in problem
    assert "training.eval_every was 52 and is 38 and the data were others" in problem
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["seed-0"]


def test_seeds_from_a_table_leave_no_dataset(place) -> None:
    words = ["train", "clicks.csv", "--schema", "schema.json", "--seeds", 2, *SMALL, *STEPS]
    crossrank(*words, "--into", "runs/raw", cwd=place)
    assert sorted(path.name for path in (place / "runs" / "raw").iterdir()) == ["seed-0", "seed-1", "seeds.json"]
    _, problem = crossrank("train", "clicks.csv", "--seeds", 2, "--into", "gone", "--label", "user", cwd=place, code=2)
    assert "error: " in problem and not (place / "gone").exists()


def test_a_folder_of_seeds_names_its_first_run(place, tmp_path) -> None:
    shutil.copytree(place / "runs" / "first", tmp_path / "seeds" / "seed-0")
    for words in (["evaluate"], ["predict", "t.csv", "--into", "s.csv"], ["report"], ["explain"]):
        _, problem = crossrank(words[0], "seeds", *words[1:], cwd=tmp_path, code=2)
        assert "seeds/seed-0" in problem


def test_a_training_that_ends_while_it_improves_says_so(place) -> None:
    for epochs, patience in ((2, 2), (40, 1)):
        words = ["--set", f"training.epochs={epochs}", "--set", f"training.patience={patience}"]
        rate = ["--set", "training.learning_rate=0.003", "--set", "training.eval_every=26"]
        _, talk = crossrank("train", "dataset", "--into", f"runs/e{epochs}", *SMALL, *words, *rate, cwd=place)
        assert ("while still improving" in talk) == (epochs == 2)
    one_epoch = json.loads((place / "runs" / "first" / "report.json").read_text())
    assert not one_epoch["training"]["still_improving"]  # nothing to compare with


def test_evaluate_says_which_rows_it_was_trained_on(place, clicks, tmp_path) -> None:
    report = json.loads((place / "runs" / "first" / "run.json").read_text())
    output, talk = crossrank("evaluate", "runs/first", "clicks.csv", "--json", cwd=place)
    assert f"it learned {report['rows']['train']:,} of these 2,000 rows" in talk
    assert json.loads(output)["rows"] == 2000
    clicks.head(1999).write_csv(tmp_path / "other.csv")
    assert crossrank("evaluate", "runs/first", tmp_path / "other.csv", cwd=place)[1] == ""


def test_an_interrupted_training_says_how_to_go_on(place, kill_at_step) -> None:
    words = ["train", "dataset", "--into", "runs/cut", *SMALL, "--set", "training.eval_every=2"]
    for step, expected in ((1, "nothing is kept"), (4, "--resume")):
        kill_at_step(step)
        _, talk = crossrank(*words, cwd=place, code=130)
        assert talk.startswith("interrupted; ") and expected in talk
    command = shlex.split(talk.partition("with: crossrank ")[2])
    kill_at_step(10**6)
    crossrank(*command, cwd=place)
    kill_at_step(1)
    words = ["train", "dataset", "--into", "runs/cut-seeds", "--seeds", 2, *SMALL]
    _, talk = crossrank(*words, cwd=place, code=130)
    assert "the same command goes on" in talk and "--seeds 2" in talk


def test_a_table_too_small_to_split_is_told_its_size(place, clicks, tmp_path) -> None:
    clicks.head(5).with_columns(click=pl.Series([0, 1, 0, 1, 0])).write_csv(tmp_path / "five.csv")
    words = ["five.csv", "--schema", place / "schema.json", "--into", "x"]
    _, problem = crossrank("train", *words, cwd=tmp_path, code=2)
    assert "got 5 rows in all (train 4, valid 1, test 0)" in problem
    _, talk = crossrank("prepare", *words, cwd=tmp_path)
    assert "warning: 5 rows are so few that none is a test row" in talk


def test_tuning_a_table_says_how_to_prepare_it(place) -> None:
    _, problem = crossrank("tune", "clicks.csv", "--into", "x", cwd=place, code=2)
    assert "hint: Make one with: crossrank prepare clicks.csv --into data/clicks" in problem


@pytest.mark.parametrize("name", ["t.json", "t.jsonl", "t.feather", "t.zip", "t.pkl", "t.xlsx", "zipped.csv"])
def test_a_file_of_another_format_is_called_so(place, clicks, tmp_path, name) -> None:
    path = tmp_path / name
    if name.startswith("t.feather"):
        clicks.write_ipc(path)
    elif "zip" in name:
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(place / "clicks.csv")
    else:
        path.write_text("[]")
    _, problem = crossrank("data", "describe", name, cwd=tmp_path, code=2)
    assert f"got {'zip' if 'zip' in name else name[2:]}." in problem and "hint: " in problem


TABLES = {
    "train": ["--into", "x"],
    "prepare": ["--into", "x"],
    "evaluate": [],
    "predict": ["--into", "x.csv"],
    "describe": ["--label", "click"],
    "report": [],
}


@pytest.mark.parametrize("command", TABLES)
def test_hints_name_options_that_the_command_has(place, tmp_path, command) -> None:
    text = (place / "clicks.csv").read_text()
    (tmp_path / "long.csv").write_text(text + "1,2,3,4,5,6,7,8,9,10,11,12,13\n")
    (tmp_path / "commas.tsv").write_text(text)
    (tmp_path / "twice.csv").write_text("a,a\n1,2\n")
    group = typer.main.get_command(app)
    for name, option in (("long.csv", "--on-error skip"), ("commas.tsv", "--separator ','"), ("twice.csv", "")):
        first = ["data", command] if command == "describe" else [command]
        run = [place / "runs" / "first"] if command in ("evaluate", "predict", "report") else []
        table = ["--data", name] if command == "report" else [name]
        _, problem = crossrank(*first, *run, *table, *TABLES[command], cwd=tmp_path, code=2)
        hint = problem.partition("hint: ")[2]
        assert hint and option in hint
        of = "prepare" if "crossrank prepare" in hint else command
        commands = group.commands["data"].commands if of == "describe" else group.commands
        known = {name for parameter in commands[of].params for name in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", hint)) <= known


def test_bad_lines_can_be_left_out_of_scores(place, tmp_path) -> None:
    (tmp_path / "long.csv").write_text((place / "clicks.csv").read_text() + "1,2,3,4,5,6,7,8,9,10,11,12,13\n")
    run, skip = place / "runs" / "first", ["--on-error", "skip"]
    assert "left out 1 rows" in crossrank("evaluate", run, "long.csv", *skip, cwd=tmp_path)[1]
    assert "left out 1 rows" in crossrank("predict", run, "long.csv", "--into", "s.csv", *skip, cwd=tmp_path)[1]
    assert pl.read_csv(tmp_path / "s.csv").height == 2000


def test_lists_cannot_be_written_as_text(place, clicks, tmp_path) -> None:
    clicks.with_columns(pl.col("tags").str.split("|")).write_parquet(tmp_path / "lists.parquet")
    words = ["predict", place / "runs" / "first", "lists.parquet", "--into"]
    _, problem = crossrank(*words, "s.csv", cwd=tmp_path, code=2)
    assert "got lists in 'tags'" in problem and "--into s.parquet" in problem
    assert [path.name for path in tmp_path.iterdir()] == ["lists.parquet"]
    crossrank(*words, "s.parquet", cwd=tmp_path)


def test_predict_names_the_file_and_the_line(place, tmp_path) -> None:
    words = ["predict", place / "runs" / "first", "table.csv", "--into", "scored.csv"]
    table = pl.read_csv(place / "clicks.csv")
    table.drop("device").write_csv(tmp_path / "table.csv")
    assert "Column 'device' of the schema is missing from table.csv" in crossrank(*words, cwd=tmp_path, code=2)[1]
    prices = table["price"].cast(pl.String).to_list()
    table.with_columns(price=pl.Series([*prices[:38], "oops", *prices[39:]])).write_csv(tmp_path / "table.csv")
    assert "got 'oops' in line 40 of table.csv" in crossrank(*words, cwd=tmp_path, code=2)[1]


def test_what_exists_is_kept_and_the_hint_names_overwrite(place) -> None:
    for words in (
        ["prepare", "clicks.csv", "--schema", "schema.json", "--into", "dataset"],
        ["compress", "runs/first", "--rank", 2, "--into", "runs/first"],
        ["data", "synthesize", "--rows", 10, "--into", "clicks.csv"],
    ):
        assert "hint: Choose another name, or pass --overwrite" in crossrank(*words, cwd=place, code=2)[1]


def test_names_that_look_like_markup_are_printed_as_they_are(clicks, tmp_path) -> None:
    odd = {"user": "[/b]", "device": "[red]", "hour": ":key:"}
    clicks.rename(odd).write_csv(tmp_path / "[x].csv")
    output, _ = crossrank("data", "describe", "[x].csv", cwd=tmp_path)
    assert all(name in output for name in (*odd.values(), "[x].csv"))
    _, talk = crossrank("train", "[x].csv", "--into", "[r]", *SMALL, *STEPS, cwd=tmp_path)
    assert all(name in talk for name in (*odd.values(), "[r]"))
    output, _ = crossrank("explain", "[r]", "--top", 99, cwd=tmp_path)
    assert all(name in output for name in odd.values())


def test_a_row_to_explain_must_be_an_object(place) -> None:
    _, problem = crossrank("explain", "runs/first", "--row", "[1]", cwd=place, code=2)
    assert "--row must be a JSON object; the whole must be an object; got [1]" in problem


def test_the_config_lists_the_choices_of_each_setting() -> None:
    output, _ = crossrank("config", "dcn-mix")
    for key, choices in (
        ("gate", '"softmax" | "sigmoid"'),
        ("# activation", '"identity" | "relu"'),
        ("method", '"time"'),
    ):
        line = next(line for line in output.splitlines() if line.startswith(f"{key} "))
        assert choices in line


def test_the_library_lists_its_public_names() -> None:
    assert set(dir(library)) == {*library.__all__, "__version__"}
