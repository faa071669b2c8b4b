"""Whole trainings on a GPU: saved, resumed, and many at once."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from crossrank.errors import ConfigError
from crossrank.runs import Run
from crossrank.training import Config, Planned, train, train_seeds, train_together
from crossrank.training.cuda.engine import CapturedEngine
from crossrank.training.device import choose_device

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
TRAINING = {"batch_size": 128, "epochs": 2, "log_every": 5, "learning_rate": 0.01, "eval_every": 6, "patience": 0}
NO_DROPOUT = {"embedding": {"dim": 4, "dropout": 0.0}, "deep": {"sizes": [8], "dropout": 0.0}}  # short tables have some
SMALL = {"model": NO_DROPOUT, "training": TRAINING}
DROPOUT = {"model": {"embedding": {"dim": 4, "dropout": 0.1}, "deep": {"sizes": [8]}}, "training": TRAINING}


def with_device(config: dict, device: str) -> dict:
    return {**config, "training": {**config["training"], "device": device, "precision": "float32"}}


def test_auto_is_the_gpu() -> None:
    assert choose_device("auto").type == "cuda"
    assert choose_device("cpu").type == "cpu"


def test_a_run_from_the_gpu_is_like_one_from_the_processor(dataset, tmp_path) -> None:
    here, there = (train(dataset, into=tmp_path / name, config=with_device(SMALL, name)) for name in ("cpu", "cuda"))
    assert {path.name for path in here.path.iterdir()} == {path.name for path in there.path.iterdir()}
    left, right = (run.model.state_dict() for run in (here, there))
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(right[name], tensor, rtol=0, atol=2e-3)
    assert [one.initial for one in here.spectrum] == [one.initial for one in there.spectrum]
    assert there.report["test"]["logloss"] == pytest.approx(here.report["test"]["logloss"], abs=1e-3)
    assert there.report["valid"]["logloss"] == pytest.approx(
        min(line["valid"]["logloss"] for line in there.metrics if "valid" in line), abs=1e-5
    )


@pytest.mark.parametrize("config", [SMALL, DROPOUT], ids=["written out", "dropout"])
def test_a_killed_training_resumes_to_the_same_weights(config, dataset, tmp_path, monkeypatch) -> None:
    whole = train(dataset, into=tmp_path / "whole", config=config)
    again = train(dataset, into=tmp_path / "again", config=config)
    step, calls = CapturedEngine.step, []

    def killed(self, batch):
        calls.append(batch)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return step(self, batch)

    monkeypatch.setattr(CapturedEngine, "step", killed)
    with pytest.raises(KeyboardInterrupt):
        train(dataset, into=tmp_path / "cut", config=config)
    monkeypatch.undo()
    resumed = train(dataset, into=tmp_path / "cut", config=config, resume=True)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name])
        torch.testing.assert_close(resumed.model.state_dict()[name], tensor, rtol=0, atol=1e-5)


def test_seeds_trained_together_equal_seeds_trained_alone(plain_dataset, tmp_path) -> None:
    dataset = plain_dataset
    together = train_seeds(dataset, into=tmp_path / "together", seeds=3, config=SMALL)
    for seed in range(3):
        alone = train(dataset, into=tmp_path / f"alone-{seed}", seed=seed, config=SMALL)
        run = Run.open(tmp_path / "together" / f"seed-{seed}")
        assert {path.name for path in run.path.iterdir()} == {path.name for path in alone.path.iterdir()}
        assert together["test"]["logloss"]["values"][seed] == pytest.approx(alone.report["test"]["logloss"], abs=1e-4)
        for name, tensor in alone.model.state_dict().items():
            torch.testing.assert_close(run.model.state_dict()[name], tensor, rtol=0, atol=2e-3)
        assert [line["step"] for line in run.metrics] == [line["step"] for line in alone.metrics]
        for here, there in zip(alone.spectrum, run.spectrum, strict=True):
            assert there.initial == pytest.approx(here.initial, rel=1e-4, abs=1e-5)


def test_learning_rates_trained_together_equal_learning_rates_trained_alone(plain_dataset, tmp_path) -> None:
    config, runs = Config.parse(with_device(SMALL, "cuda")), []
    for number, rate in enumerate((0.001, 1e30, 0.02)):
        own = dataclasses.replace(config, training=dataclasses.replace(config.training, learning_rate=rate))
        runs.append(Planned(into=tmp_path / f"together-{number}", config=own, seed=3))
    together = train_together(plain_dataset, runs)
    assert together is not None and isinstance(together[1], ConfigError)
    for planned, run in list(zip(runs, together, strict=True))[::2]:
        alone = train(plain_dataset, into=tmp_path / "alone", seed=3, config=planned.config, overwrite=True)
        assert run.report["test"]["logloss"] == pytest.approx(alone.report["test"]["logloss"], abs=1e-4)
        for name, tensor in alone.model.state_dict().items():
            torch.testing.assert_close(run.model.state_dict()[name], tensor, rtol=0, atol=2e-3)
