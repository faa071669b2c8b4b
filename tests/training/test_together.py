"""The loop of models that take their steps together, on a processor."""

from __future__ import annotations

import dataclasses
import sys
import types

import pytest
import torch

from crossrank.errors import ConfigError
from crossrank.models import build_model
from crossrank.runs import Run
from crossrank.training import Config, Planned, train, train_seeds, train_together
from crossrank.training.engines import joint_engine
from crossrank.training.trainer import Trainer, train_models

SMALL = {
    "model": {"embedding": {"dim": 4}, "deep": {"sizes": [8]}},
    "training": {
        "tables": "lazy",
        "batch_size": 128,
        "epochs": 3,
        "log_every": 5,
        "learning_rate": 0.05,
        "eval_every": 6,
        "patience": 1,
    }
    | {"device": "cpu", "precision": "float32"},
}


@pytest.fixture
def shared(monkeypatch) -> None:
    """Share programs on the processor too."""
    anything = types.SimpleNamespace(type="not a processor")
    monkeypatch.setattr(sys.modules["crossrank.training.seeds"], "choose_device", lambda name: anything)


def config_of(learning_rate: float = 0.05) -> Config:
    config = Config.parse(SMALL)
    return dataclasses.replace(config, training=dataclasses.replace(config.training, learning_rate=learning_rate))


def test_a_loop_for_many_equals_a_loop_for_each(plain_dataset, tmp_path) -> None:
    config, dataset = Config.parse(SMALL), plain_dataset
    models, settings = [], [config.training] * 3
    for seed in range(3):
        torch.manual_seed(seed)
        models.append(build_model(config.model, dataset.features))
    engine = joint_engine(models, dataset, settings, seeds=range(3))
    trainers = []
    for seed, member in enumerate(engine.members):
        folder = tmp_path / f"together-{seed}"
        folder.mkdir()
        trainers.append(Trainer(member, dataset, config.training, folder=folder))
    assert train_models(engine, trainers) == {}
    engine.close()
    for seed, trainer in enumerate(trainers):
        alone = train(dataset, into=tmp_path / f"alone-{seed}", config=config, seed=seed)
        assert trainer.position.step == alone.report["training"]["steps"]
        assert trainer.position.best_step == alone.report["training"]["best_step"]
        assert trainer.position.best == pytest.approx(alone.report["valid"]["logloss"], abs=1e-4)
        assert len((trainer.folder / "metrics.jsonl").read_text().splitlines()) == len(alone.metrics)
        assert (trainer.folder / "checkpoint" / "position.json").is_file()


def test_runs_of_several_learning_rates_equal_runs_alone(shared, plain_dataset, tmp_path) -> None:
    rates = (0.002, 0.05, 0.01)
    runs = [Planned(into=tmp_path / f"run-{i}", config=config_of(rate), seed=4) for i, rate in enumerate(rates)]
    together = train_together(plain_dataset, runs)
    for planned, run in zip(runs, together, strict=True):
        alone = train(plain_dataset, into=tmp_path / "alone", config=planned.config, seed=4, overwrite=True)
        assert isinstance(run, Run) and run.path == planned.into
        assert run.config == alone.config
        assert {path.name for path in run.path.iterdir()} == {path.name for path in alone.path.iterdir()}
        assert [one.initial for one in run.spectrum] == [one.initial for one in alone.spectrum]
        assert [line["step"] for line in run.metrics] == [line["step"] for line in alone.metrics]
        assert run.report["test"]["logloss"] == pytest.approx(alone.report["test"]["logloss"], abs=1e-4)
        for name, tensor in alone.model.state_dict().items():
            torch.testing.assert_close(run.model.state_dict()[name], tensor, rtol=0, atol=1e-3)


def test_a_model_that_diverges_and_one_that_is_given_up_leave_alone(shared, plain_dataset, tmp_path) -> None:
    seen = []

    def give_up(step: int, metrics: dict) -> None:
        seen.append(step)
        raise ArithmeticError

    runs = [
        Planned(into=tmp_path / "wild", config=config_of(1e30), seed=0),
        Planned(into=tmp_path / "hopeless", config=config_of(0.01), seed=0, on_evaluation=give_up),
        Planned(into=tmp_path / "good", config=config_of(0.05), seed=0),
    ]
    wild, hopeless, good = train_together(plain_dataset, runs, test=False)
    assert isinstance(wild, ConfigError) and "1e+30" in str(wild.hint)
    assert isinstance(hopeless, ArithmeticError) and seen == [6]
    alone = train(plain_dataset, into=tmp_path / "alone", config=config_of(0.05), test=False)
    assert isinstance(good, Run)
    assert good.report["valid"]["logloss"] == pytest.approx(alone.report["valid"]["logloss"], abs=1e-4)
    assert [line["step"] for line in good.metrics] == [line["step"] for line in alone.metrics]
    assert not (tmp_path / "wild").exists() and not (tmp_path / "hopeless").exists()


def test_seeds_may_have_rows_that_shrink_as_fast_as_their_average_follows(plain_dataset, tmp_path) -> None:
    steps = {"table_decay": 4.0, "average_decay": 0.99, "learning_rate": 0.001, "max_steps": 2}
    summary = train_seeds(plain_dataset, into=tmp_path / "runs", seeds=2, config={"training": steps})
    assert summary["seeds"] == 2


def test_a_seed_that_diverges_is_an_error(shared, plain_dataset, tmp_path) -> None:
    with pytest.raises(ConfigError, match="finite"):
        train_seeds(plain_dataset, into=tmp_path / "runs", seeds=2, config=config_of(1e30))


def test_runs_that_differ_in_more_than_one_program_allows_are_not_begun(
    shared, plain_dataset, clicks, tmp_path
) -> None:
    one, other = (Planned(into=tmp_path / f"run-{i}", config=config_of(), seed=i) for i in range(2))
    wide = Config.parse({**SMALL, "model": {"embedding": {"dim": 8}, "deep": {"sizes": [8]}}})
    assert train_together(plain_dataset, [one, dataclasses.replace(other, config=wide)]) is None
    assert train_together(plain_dataset, [one]) is None
    assert train_together(clicks, [one, other]) is None
    assert not list(tmp_path.glob("run-*"))
