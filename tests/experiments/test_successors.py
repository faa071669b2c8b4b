"""The networks after DCN-V2: one budget of a search for all, and tables on which they are compared."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from crossrank.data.generators.synthetic import synthesize
from crossrank.data.sources.avazu import COLUMNS
from crossrank.experiments.paper import EXPERIMENTS, movielens, run_experiment, studies, successors
from crossrank.experiments.paper.successors import MOVIELENS, SETS, TABLES, choose, models
from crossrank.models.cost import model_cost
from crossrank.runs import Run
from crossrank.training import Config

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

RECIPES = {"movielens-1m": MOVIELENS, **{name: rows.recipe for name, rows in TABLES.items()}}
TINY = {"model": {"name": "dnn", "embedding": {"dim": 2}, "deep": {"sizes": [4]}}, "training": {"max_steps": 4}}


def tried(dataset, folder, rates):
    setting = studies.Setting(label="DNN, dropout 0", config=TINY, line="DNN")
    wanted = studies.tasks(dataset, [setting], folder, seeds=1, rates=rates)
    return wanted, studies.measure_tasks(wanted, jobs=1)


def test_a_search_tries_each_rate_once_and_reads_no_test_rows(dataset, tmp_path, monkeypatch):
    wanted, (found,) = tried(dataset, tmp_path, (0.001, 0.1))
    runs = {rate: Run.open(tmp_path / "dnn-dropout-0" / f"rate-{rate}") for rate in ("0.001", "0.1")}
    assert found["valid"] == {rate: run.report["valid"]["logloss"] for rate, run in runs.items()}
    assert [run.config["training"]["learning_rate"] for run in runs.values()] == [0.001, 0.1]
    assert not any("test" in run.report for run in runs.values())
    with monkeypatch.context() as patch:
        patch.setattr(studies, "train_missing", None)
        assert tried(dataset, tmp_path, (0.001, 0.1)) == (wanted, [found])
    assert list(tried(dataset, tmp_path, (0.001, 0.1, 0.2))[1][0]["valid"]) == ["0.001", "0.1", "0.2"]


def test_a_rate_that_diverges_is_passed_over(dataset, tmp_path):
    wanted, found = tried(dataset, tmp_path, (1e30, 0.001))
    assert found[0]["valid"]["1e+30"] is None
    assert choose(wanted, found)["DNN"]["learning_rate"] == 0.001


def test_the_lowest_validation_loss_is_chosen(dataset, tmp_path):
    wanted = MOVIELENS.search_tasks(dataset, tmp_path)
    found = [{"valid": {"0.001": 0.5 - task.setting.place, "0.002": 0.4}} for task in wanted]
    found[1] = {"valid": {"0.001": 0.3, "0.002": 0.15}}
    chosen = choose(wanted, found)
    assert list(chosen) == list(models(()))
    assert chosen["PNN"] == {"learning_rate": 0.002, "dropout": 0.4, "valid_logloss": 0.15}
    assert chosen["DCN-V2"] == {"learning_rate": 0.001, "dropout": 0.4, "valid_logloss": pytest.approx(0.1)}


@pytest.mark.parametrize("name", RECIPES)
def test_every_model_has_the_same_budget_on_a_table_and_can_be_built(name, dataset, tmp_path):
    recipe = RECIPES[name]
    wanted = recipe.search_tasks(dataset, tmp_path)
    labels = [task.setting.line for task in wanted]
    assert {labels.count(label) for label in models(())} == {len(recipe.dropouts)}
    assert len(recipe.rates) * len(recipe.dropouts) == {"movielens-1m": 8, "criteo-like": 2}.get(name, 4)
    assert len({task.folder for task in wanted}) == len(wanted)
    for task in wanted:
        config = Config.parse(task.setting.config)
        assert task.rates == recipe.rates and config.model.embedding.dropout == task.setting.place
        assert model_cost(config.model, dataset.features).network_parameters > 0
        for rate in recipe.rates:  # nothing but rate and dropout differs, so that the chosen one was tried
            chosen = {task.setting.line: {"learning_rate": rate, "dropout": task.setting.place}}
            (again,) = recipe.test_tasks(dataset, tmp_path, chosen, seeds=1)
            training = {**task.setting.config["training"], "learning_rate": rate}
            assert again.setting.config == {**task.setting.config, "training": training}


def test_the_committed_choices_are_of_the_grid():
    choices = movielens.committed("successors.json")
    assert list(choices) == list(models(()))
    for chosen in choices.values():
        assert chosen["learning_rate"] in MOVIELENS.rates and chosen["dropout"] in MOVIELENS.dropouts


def test_the_list_of_experiments_names_the_sets_that_are_taken():
    assert EXPERIMENTS["successors"].takes == SETS


def avazu_rows(path):
    random = np.random.default_rng(0)
    cells = {name: random.integers(0, 3, 300).astype(str) for name in COLUMNS}
    frame = pl.DataFrame({**cells, "hour": ["14102100"] * 300, "click": random.integers(0, 2, 300)})
    frame.write_csv(path)


def book_rows(path):
    random = np.random.default_rng(0)
    names = {name: random.integers(0, 5, 300).astype(str) for name in ("user", "item")}
    split = ["train"] * 200 + ["valid"] * 50 + ["test"] * 50
    pl.DataFrame({"split": split, "label": random.integers(0, 2, 300), **names}).write_csv(path)


def test_models_are_compared_on_generated_rows_and_on_the_sets_that_are_given(tmp_path, monkeypatch):
    few = {label: row for label, row in models((8,)).items() if label in ("PNN", "DCN-V2")}
    monkeypatch.setattr(successors, "models", lambda deep: few)
    synthesize(tmp_path / "criteo.tsv", rows=1000, progress=False)
    book_rows(tmp_path / "book.csv")
    data = {"criteo-sample": tmp_path / "criteo.tsv", "book-crossing": tmp_path / "book.csv"}
    work = tmp_path / "work"
    assert list(successors.run(quick=True, work=work, jobs=1).values["tables"]) == ["criteo-like"]
    page = run_experiment("successors", tmp_path / "pages", quick=True, data=data, work=work, jobs=1)
    assert list(page.values["tables"]) == ["criteo-like", "criteo-sample", "book-crossing"]
    for name, found in page.values["tables"].items():
        assert list(found) == list(few)
        for label, values in found.items():
            folder = work / "successors-quick" / name / "runs" / label.lower()
            tested = [Run.open(folder / f"seed-{seed}").report["test"]["logloss"] for seed in range(2)]
            assert values["logloss"]["values"] == tested
            apart = values["logloss_against_PNN"]["mean"]
            assert apart == pytest.approx(np.mean(tested) - found["PNN"]["logloss"]["mean"])
    text = (tmp_path / "pages/successors.md").read_text()
    assert "Left out here: a sample of Avazu." in text
    assert "`crossrank paper successors --quick --data criteo-sample=criteo.tsv --data book-crossing=book.csv`" in text
    assert json.loads((tmp_path / "pages/successors.json").read_text())["choices"] == page.values["choices"]

    avazu_rows(tmp_path / "avazu.csv")
    again = successors.run(quick=True, data={"avazu-sample": tmp_path / "avazu.csv"}, work=work, jobs=1)
    assert list(again.values["tables"]) == list(TABLES), "what was prepared before is there"
    assert again.values["tables"]["book-crossing"] == page.values["tables"]["book-crossing"]
