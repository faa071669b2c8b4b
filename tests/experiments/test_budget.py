"""Settings found within a budget of time."""

import itertools
import random
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import crossrank as cr
from crossrank.config import flatten
from crossrank.data.prepare import prepare
from crossrank.errors import ConfigError
from crossrank.experiments import budget
from crossrank.experiments.budget import KNOBS, find_settings
from crossrank.runs import Run
from crossrank.schema import Categorical, Label, Schema
from crossrank.training import Config

SMALL = {
    "model": {"deep": {"sizes": [4]}, "embedding": {"dim": 2}},
    "training": {"max_steps": 6, "eval_every": 2, "batch_size": 64},
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    draw = np.random.default_rng(0)
    user, item = draw.integers(0, 30, 900), draw.integers(0, 20, 900)
    clicked = (draw.random(900) < 0.2 + 0.6 * ((user + item) % 2)).astype(int)
    schema = Schema([Categorical(name="user"), Categorical(name="item")], Label(name="clicked"))
    table = pl.DataFrame({"user": user, "item": item, "clicked": clicked})
    return prepare(table, schema, tmp_path_factory.mktemp("budget") / "dataset")


@pytest.fixture(autouse=True)
def a_second_passes_at_each_look(monkeypatch) -> None:
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=itertools.count().__next__))


def test_what_is_given_stays_and_every_other_setting_is_written_out(dataset) -> None:
    lines = list[str]()
    found = find_settings(dataset, minutes=1, config=SMALL, say=lines.append)
    flat = flatten(found)
    assert {key: flat[key] for key in flatten(SMALL)} == flatten(SMALL)
    assert {*flat} >= {key for key in flatten(Config.parse({}).to_dict()) if not key.startswith("split.")}
    assert lines[0].startswith("trial 1: 0.") and lines[0].endswith("nothing changed")
    assert int(lines[-1].split()[0]) > 1


def test_where_nothing_does_better_what_was_given_is_what_was_found(dataset) -> None:
    assert find_settings(dataset, minutes=0.001, config=SMALL, say=lambda _: None) == SMALL


def test_a_run_with_what_was_found_is_an_ordinary_one(dataset, tmp_path) -> None:
    found = find_settings(dataset, minutes=1, config=SMALL, say=lambda _: None)
    run = cr.train(dataset, into=tmp_path / "run", config=found, progress=False)
    assert flatten(run.config).items() >= flatten({"training": found["training"], "model": found["model"]}).items()
    assert isinstance(Run.open(run.path).report["test"]["logloss"], float)


def test_no_trial_reads_the_test_rows_and_the_best_one_wins(dataset, monkeypatch) -> None:
    asked, train = list[dict](), budget.train

    def watched(*arguments, **options):
        seen = list[float]()
        look = options.pop("on_evaluation")

        def follow(step, metrics):
            seen.append(metrics["logloss"])
            look(step, metrics)

        asked.append({"config": options["config"], "losses": seen, "test": options["test"]})
        return train(*arguments, on_evaluation=follow, **options)

    monkeypatch.setattr(budget, "train", watched)
    found = find_settings(dataset, minutes=1, config=SMALL, say=lambda _: None)
    assert not any(one["test"] for one in asked)
    best = min(asked, key=lambda one: min(one["losses"], default=1e9))
    assert best["config"].training == Config.parse(found).training


def test_a_new_trial_changes_what_may_be_changed_alone() -> None:
    first = Config.parse({})
    knobs = {"training.learning_rate": KNOBS["training.learning_rate"], "model.deep.dropout": (0.0, 0.5)}
    trials = [budget.Trial(0.5, 1.0, first)]
    for seed in range(20):
        other = budget._next(random.Random(seed), trials, knobs)
        left, right = flatten(first.to_dict()), flatten(other.to_dict())
        assert other != first and {key for key in left if left[key] != right[key]} <= knobs.keys()


def test_an_ensemble_is_searched_as_one_model(dataset) -> None:
    config = {**SMALL, "model": {**SMALL["model"], "ensemble": 3}}
    assert find_settings(dataset, minutes=0.001, config=config, say=lambda _: None)["model"]["ensemble"] == 3


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan")])
def test_no_time_is_refused(dataset, minutes) -> None:
    with pytest.raises(ConfigError, match="must be more than 0; got"):
        find_settings(dataset, minutes=minutes, say=lambda _: None)


def test_nothing_to_search_is_refused(dataset) -> None:
    first = Config.parse({}).to_dict()
    config = {"model": first["model"], "training": first["training"]}
    with pytest.raises(ConfigError, match="all of them were given"):
        find_settings(dataset, minutes=1, config=config, say=lambda _: None)
