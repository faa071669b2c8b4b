"""A search that can be stopped, continued and repeated."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from crossrank.data.generators.demo import schema
from crossrank.data.prepare import prepare
from crossrank.errors import ConfigError, MissingExtraError, RunError
from crossrank.experiments import trials, tune
from crossrank.experiments.space import Space
from crossrank.schema import Schema
from crossrank.training import seeds, trainer

pytest.importorskip("optuna", reason="optuna is not installed")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")

TRAIN = sys.modules["crossrank.training.train"]  # the package has a function of this name
SPACE = {
    "fixed": {
        "model": {"name": "dcn-v2", "embedding": {"dim": 4}},
        "training": {"batch_size": 256, "epochs": 2, "eval_every": 2, "log_every": 2, "patience": 0},
    },
    "search": {
        "training": {"learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}},
        "model": {"cross": {"num_layers": [1, 2]}, "deep": {"sizes": {"layers": [1, 2], "size": [4, 8]}}},
    },
}
ASKED = {"space": SPACE, "trials": 12, "stages": 2, "finalists": 2, "seeds": 2, "jobs": 1, "say": lambda text: None}


@pytest.fixture(scope="module")
def finished(dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune") / "search"
    return tune.tune(dataset, folder, **ASKED)


def content(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in ("leaderboard.json", "leaderboard.md", "result.json")]


def test_a_search_writes_a_leaderboard_a_plot_and_the_winners_test_scores(finished):
    assert len(finished.leaderboard) == 12
    scores = [row["score"] for row in finished.leaderboard if row["state"] == "complete"]
    assert scores == sorted(scores)
    assert (finished.path / "leaderboard.svg").read_text().startswith("<?xml")
    result = json.loads((finished.path / "result.json").read_text())
    assert result["config"] == finished.winner
    assert len(result["test"]["auc"]["values"]) == 2
    assert result["test"]["logloss"]["values"][0] != result["test"]["logloss"]["values"][1]


def test_the_second_stage_searches_a_smaller_range(finished):
    rates = {row["number"]: row["values"]["training.learning_rate"] for row in finished.leaderboard}
    coarse = [rates[number] for number in range(6)]
    fine = [rates[number] for number in range(6, 12)]
    assert max(fine) / min(fine) < max(coarse) / min(coarse)


def test_a_hopeless_trial_ends_early_however_often_it_was_interrupted(dataset, tmp_path, monkeypatch):
    values = {"training.learning_rate": 1e-2, "model.cross.num_layers": 1}
    values |= {"model.deep.sizes:layers": 1, "model.deep.sizes:size": 4}
    good = {"values": values, "config": {}, "parameters": 1, "flops": 1, "state": "complete", "seconds": 0.0}
    earlier = [trials.Trial(number=i, score=0.1, curve=[0.1] * 9, **good) for i in range(5)]
    options = {"dataset": dataset.path, "number": 5, "seed": 0, "space": Space.parse(SPACE), "max_parameters": 10**6}
    whole, kept, cut = (tmp_path / name for name in ("whole", "kept", "cut"))
    pruned = trials.run_family([trials.Task(folder=whole, earlier=earlier, **options)])[0]
    complete = trials.run_family([trials.Task(folder=kept, earlier=earlier[:4], **options)])[0]
    assert (pruned.state, len(pruned.curve)) == ("pruned", 3)
    assert (complete.state, len(complete.curve)) == ("complete", 7)
    assert pruned.score == min(pruned.curve) > 0.1

    save = trainer.save_checkpoint

    for place in (1, 2, 3):  # at the third evaluation it is given up

        def killed(folder, position, tensors, step=2 * place):
            save(folder, position, tensors)
            if position.step == step:
                raise KeyboardInterrupt

        monkeypatch.setattr(trainer, "save_checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            trials.run_family([trials.Task(folder=cut, earlier=earlier, **options)])
    monkeypatch.undo()
    again = trials.run_family([trials.Task(folder=cut, earlier=earlier, **options)])[0]
    assert (again.state, again.curve) == (pruned.state, pruned.curve)
    assert [path.name for path in cut.iterdir()] == ["0005.json"]


def test_a_search_killed_while_it_clears_up_continues(finished, dataset, tmp_path, monkeypatch):
    remove = shutil.rmtree

    def half(folder, **options):
        remove(folder / "encoder" if folder.name == "0000" else folder, **options)
        if folder.name == "0000":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(trials.shutil, "rmtree", half)
        tune.tune(dataset, tmp_path / "search", **ASKED)
    tune.tune(dataset, tmp_path / "search", **ASKED)
    assert content(tmp_path / "search") == content(finished.path)
    assert all(path.suffix == ".json" for path in (tmp_path / "search" / "trials").iterdir())


def test_a_search_killed_before_it_noted_a_finished_trial_continues(finished, dataset, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(trials, "write_json", killed)
        tune.tune(dataset, tmp_path / "search", **ASKED)
    assert [path.name for path in (tmp_path / "search" / "trials").iterdir()] == ["0000"]
    tune.tune(dataset, tmp_path / "search", **ASKED)
    assert content(tmp_path / "search") == content(finished.path)


@pytest.mark.parametrize("killed_at", [3, 50, 130])
def test_a_killed_search_continues_to_the_same_leaderboard(finished, dataset, tmp_path, kill_at_step, killed_at):
    calls = kill_at_step(killed_at)
    with pytest.raises(KeyboardInterrupt):
        tune.tune(dataset, tmp_path / "search", **ASKED)
    assert not (tmp_path / "search" / "result.json").exists()
    before = len(calls)
    tune.tune(dataset, tmp_path / "search", **ASKED)
    assert len(calls) > before
    assert content(tmp_path / "search") == content(finished.path)


@pytest.mark.slow
def test_parallel_trials_give_the_same_leaderboard(finished, dataset, tmp_path):
    tune.tune(dataset, tmp_path / "search", **ASKED | {"jobs": 2})
    assert content(tmp_path / "search") == content(finished.path)


@pytest.mark.slow
def test_a_search_that_is_killed_outright_leaves_no_worker_and_continues(finished, dataset, tmp_path):
    folder = tmp_path / "search"
    asked = {key: value for key, value in ASKED.items() if key != "say"} | {"jobs": 2}
    program = f"""
from pathlib import Path
from threading import Event
from crossrank.experiments.tune import tune
from crossrank.training.processor import ProcessorEngine

step = ProcessorEngine.step

def held(self, batch):
    if list(Path({str(folder)!r}).glob("trials/*.json")):
        print("held", flush=True)
        Event().wait(600)  # until the search is killed
    return step(self, batch)

ProcessorEngine.step = held  # also in its workers, which read this file
if __name__ == "__main__":
    tune({str(dataset.path)!r}, {str(folder)!r}, **{asked!r})
"""
    (tmp_path / "search.py").write_text(program)
    process = subprocess.Popen([sys.executable, tmp_path / "search.py"], stdout=subprocess.PIPE, text=True)
    assert "held\n" in process.stdout
    process.kill()
    process.communicate(timeout=300)  # its output ends when the last process that could write to it has
    assert 0 < len(list(folder.glob("trials/*.json"))) < 12
    tune.tune(dataset, folder, **ASKED)
    assert content(folder) == content(finished.path)


def test_a_finished_search_is_not_trained_again(finished, dataset, monkeypatch):
    monkeypatch.setattr(TRAIN, "train", None)
    assert tune.tune(dataset, finished.path, **ASKED).leaderboard == finished.leaderboard


def test_a_plan_from_before_there_were_rates_is_continued(finished, dataset, tmp_path):
    shutil.copytree(finished.path, tmp_path / "search")
    plan = json.loads((tmp_path / "search" / "plan.json").read_text())
    assert plan.pop("rates") == 1
    (tmp_path / "search" / "plan.json").write_text(json.dumps(plan))
    tune.tune(dataset, tmp_path / "search", **ASKED)
    with pytest.raises(RunError, match=r"rates was 1 and is 2\."):
        tune.tune(dataset, tmp_path / "search", **ASKED | {"rates": 2})


FAMILIES = ASKED | {"rates": 4, "trials": 20, "seeds": 1}
RATE = "training.learning_rate"


@pytest.fixture(scope="module")
def plain_dataset(clicks, tmp_path_factory):
    """Without bags, so that models can be trained as one program."""
    whole = schema()
    single = Schema([feature for feature in whole.features if feature.name != "tags"], whole.label)
    return prepare(clicks.drop("tags"), single, tmp_path_factory.mktemp("plain") / "dataset")


@pytest.fixture(scope="module")
def families(plain_dataset, tmp_path_factory):
    return tune.tune(plain_dataset, tmp_path_factory.mktemp("families") / "search", **FAMILIES)


def drawn(result) -> list[dict]:
    return [row["values"] for row in sorted(result.leaderboard, key=lambda row: row["number"])]


def test_trials_of_a_family_differ_in_their_learning_rate_alone(families):
    values = drawn(families)
    # 10 trials a stage: a group of eight, and what is left.
    parts = [range(4), range(4, 8), range(8, 10), range(10, 14), range(14, 18), range(18, 20)]
    without = [{name: value for name, value in one.items() if name != RATE} for one in values]
    for part in parts:
        assert all(without[number] == without[part[0]] for number in part)
        assert len({values[number][RATE] for number in part}) == len(part)
    assert len({json.dumps(without[part[0]]) for part in parts}) > 1
    assert all(row["config"]["training"]["learning_rate"] == row["values"][RATE] for row in families.leaderboard)


def test_the_first_of_a_family_is_drawn_as_without_families(families, plain_dataset, tmp_path):
    """As long as both know the same trials, which is the first group."""
    one_each = tune.tune(plain_dataset, tmp_path / "search", **FAMILIES | {"rates": 1, "trials": 8, "stages": 1})
    assert drawn(one_each)[0:8:4] == drawn(families)[0:8:4]


@pytest.mark.parametrize("killed_at", [20, 170])
def test_a_killed_search_of_families_continues_to_the_same_leaderboard(
    families, plain_dataset, tmp_path, kill_at_step, killed_at
):
    kill_at_step(killed_at)
    with pytest.raises(KeyboardInterrupt):
        tune.tune(plain_dataset, tmp_path / "search", **FAMILIES)
    # In the midst of a family
    assert len(list((tmp_path / "search" / "trials").glob("*.json"))) not in (0, 4, 8, 10, 14, 18, 20)
    tune.tune(plain_dataset, tmp_path / "search", **FAMILIES)
    assert content(tmp_path / "search") == content(families.path)


def test_a_family_that_trains_as_one_program_ends_as_one_after_the_other(
    families, plain_dataset, tmp_path, monkeypatch
):
    space = json.loads(json.dumps(SPACE))
    space["fixed"]["training"] |= {"tables": "lazy", "precision": "float32"}
    asked = FAMILIES | {"space": space, "trials": 12, "stages": 1}
    apart = tune.tune(plain_dataset, tmp_path / "apart", **asked)
    shared = []
    share = seeds.joint_engine

    def count(models, *args, **options):
        shared.append(len(models))
        return share(models, *args, **options)

    monkeypatch.setattr(seeds, "choose_device", lambda name: types.SimpleNamespace(type="not a processor"))
    monkeypatch.setattr(seeds, "joint_engine", count)
    together = tune.tune(plain_dataset, tmp_path / "together", **asked)
    assert shared == [4, 4, 4]
    for row, other in zip(
        *(sorted(r.leaderboard, key=lambda one: one["number"]) for r in (together, apart)), strict=True
    ):
        assert (row["state"], row["evaluations"]) == (other["state"], other["evaluations"])
        if row["number"] < 8:  # what later ones draw depends on the last digits of these
            assert row["values"] == other["values"]
            assert row["score"] == pytest.approx(other["score"], abs=1e-4)
    assert all(path.suffix == ".json" for path in (tmp_path / "together" / "trials").iterdir())


def test_in_a_family_a_hopeless_and_a_diverging_trial_end_alone(plain_dataset, tmp_path, monkeypatch):
    space = json.loads(json.dumps(SPACE))
    space["fixed"]["training"] |= {"tables": "lazy", "precision": "float32"}
    space["search"] = {"training": {"learning_rate": [1e-8, 1e-2, 1e30]}}
    good = {"config": {}, "parameters": 1, "flops": 1, "state": "complete", "seconds": 0.0, "values": {RATE: 1e-2}}
    earlier = [trials.Trial(number=i, score=0.6, curve=[0.6] * 7, **good) for i in range(8)]
    options = {"dataset": plain_dataset.path, "seed": 1, "space": Space.parse(space), "max_parameters": 10**6}
    tasks = [trials.Task(folder=tmp_path, number=8 + i, earlier=earlier, **options) for i in range(8)]
    monkeypatch.setattr(seeds, "choose_device", lambda name: types.SimpleNamespace(type="not a processor"))
    monkeypatch.setattr(TRAIN, "train", None)
    states = {(trial.values[RATE], trial.state) for trial in trials.run_family(tasks)}
    assert states == {(1e-8, "pruned"), (1e-2, "complete"), (1e30, "failed")}


@pytest.mark.parametrize("rates", [0, 3, 16])
def test_rates_that_do_not_fill_a_group_are_refused(rates, dataset, tmp_path):
    with pytest.raises(ConfigError, match=rf"rates must be 1, 2, 4 or 8.*got {rates}"):
        tune.tune(dataset, tmp_path / "a", **ASKED | {"rates": rates})


def test_several_rates_need_a_space_that_searches_the_learning_rate(dataset, tmp_path):
    space = {"fixed": SPACE["fixed"], "search": {"model": {"cross": {"num_layers": [1, 2]}}}}
    with pytest.raises(ConfigError, match=r"must search training\.learning_rate"):
        tune.tune(dataset, tmp_path / "a", **ASKED | {"space": space, "rates": 2})
    assert not (tmp_path / "a").exists()


def test_no_trial_sees_the_test_rows(dataset, tmp_path, monkeypatch):
    train, looked = TRAIN.train, []
    monkeypatch.setattr(
        TRAIN, "train", lambda *args, **options: looked.append(options["test"]) or train(*args, **options)
    )
    tune.tune(dataset, tmp_path / "search", **ASKED | {"trials": 2, "stages": 1})
    assert looked and not any(looked)


def test_another_search_in_the_same_folder_is_refused(finished, dataset):
    with pytest.raises(RunError, match=r"trials was 12 and is 13, seed was 0 and is 1\."):
        tune.tune(dataset, finished.path, **ASKED | {"trials": 13, "seed": 1})


def test_settings_above_the_cap_are_not_tried(dataset, tmp_path):
    result = tune.tune(dataset, tmp_path / "a", **ASKED | {"trials": 6, "stages": 1, "max_parameters": 1500})
    assert {row["parameters"] <= 1500 for row in result.leaderboard} == {True}
    with pytest.raises(ConfigError, match="at most 10 parameters"):
        tune.tune(dataset, tmp_path / "b", **ASKED | {"max_parameters": 10})


def test_a_mistake_in_the_space_is_named(dataset, tmp_path):
    space = {"search": {"training": {"learning_rte": [0.1]}}}
    with pytest.raises(ConfigError, match="learning_rate"):
        tune.tune(dataset, tmp_path / "a", **ASKED | {"space": space})


@pytest.mark.parametrize("log_every", [2, 100], ids=["the loss shows it", "the scores show it"])
def test_diverged_trials_are_listed_last(dataset, tmp_path, log_every):
    fixed = {**SPACE["fixed"], "training": {**SPACE["fixed"]["training"], "log_every": log_every}}
    space = {"fixed": fixed, "search": {"training": {"learning_rate": [1e-3, 1e30]}}}
    result = tune.tune(dataset, tmp_path / "a", **ASKED | {"space": space, "trials": 6, "stages": 1, "seed": 2})
    states = [row["state"] for row in result.leaderboard]
    assert states[0] == "complete" and states[-1] == "failed"
    assert all(
        row["values"]["training.learning_rate"] == 1e30 for row in result.leaderboard if row["state"] == "failed"
    )


def test_the_extra_is_asked_for_before_anything_is_done(dataset, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"crossrank\[tune\]"):
        tune.tune(dataset, tmp_path / "a", **ASKED)
    assert not (tmp_path / "a").exists()
