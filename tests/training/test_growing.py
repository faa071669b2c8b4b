"""Batches that grow: steps as written by hand, on every engine, resumed at any batch."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional as F

import crossrank as cr
from crossrank.errors import ConfigError
from crossrank.models import build_model, parse_model_settings
from crossrank.training import Config, TrainingSettings, growing
from crossrank.training.engines import make_engine
from crossrank.training.growing import GrowingEngine, phases_of
from crossrank.training.plan import check_distributed

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"))
SMALL = {"embedding": {"dim": 4}, "cross": {"num_layers": 1}, "deep": {"sizes": [8]}}
RAMP = {"batch_size": 64, "ramp": 0.6, "learning_rate": 0.02, "average_decay": 0.0, "precision": "float32"}


@pytest.fixture(autouse=True)
def small_first_steps(monkeypatch) -> None:
    monkeypatch.setattr(growing, "FIRST_ROWS", 16)


def model_of(dataset):
    torch.manual_seed(0)
    return build_model(parse_model_settings(SMALL), dataset.features)


def weights_after(dataset, *, device="cpu", stop=(), goes_on=False, **settings):
    """The weights after two epochs of 15 batches; at each stop all rows are brought up to date, as by an evaluation.

    ``goes_on``: then another engine goes on from the state of the first.
    """
    asked, model = TrainingSettings(**{**RAMP, "device": device, **settings}), model_of(dataset)
    engine = make_engine(model, dataset, asked, seed=3)
    places = [(epoch, batch) for epoch in range(2) for batch in range(15)]
    cuts = [0, *stop, len(places)]
    for first, last in itertools.pairwise(cuts):
        if first:
            with engine.using(averaged=False):
                state = {name: tensor.clone() for name, tensor in engine.state().items()}
            if goes_on:
                engine.close()
                model = model_of(dataset)
                engine = make_engine(model, dataset, asked, seed=3)
                engine.restore(state)
        at = first
        while at < last:
            for batch in engine.batches(*places[at]):
                engine.step(batch)
                assert len(batch) == (64 if places[at][1] < 14 else 4)
                at += 1
                if at == last:
                    break
    assert isinstance(engine, GrowingEngine)
    with engine.using(averaged=False):
        found = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    engine.close()
    return found


def test_phases_double_the_rows_of_a_step_over_as_many_batches_each() -> None:
    settings = TrainingSettings(batch_size=128, ramp=0.5, learning_rate=0.1, table_learning_rate=0.2)
    found = phases_of(settings, 128 * 24)
    assert [(one.parts, one.first) for one in found] == [(8, 0), (4, 4), (2, 8), (1, 12)]
    assert found[0].settings.learning_rate == pytest.approx(0.1 * 8**-0.5)
    assert found[1].settings.table_learning_rate == pytest.approx(0.2 * 4**-0.5)
    assert found[-1].settings == settings
    for same in ({"ramp": 0.0}, {"batch_size": 31}, {"batch_size": 129}):  # nothing to grow, or no halves
        assert [one.parts for one in phases_of(TrainingSettings(**{"ramp": 0.5, **same}), 10_000)] == [1]
    assert [one.parts for one in phases_of(settings, 128 * 3)] == [8, 1]  # one batch to grow in


@pytest.mark.parametrize("tables", ["dense", "lazy"])
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_steps_are_those_of_adam_on_smaller_batches(plain_dataset, tables, device) -> None:
    model = model_of(plain_dataset)
    adam, train = torch.optim.Adam(model.parameters(), lr=0.02), plain_dataset.train
    for epoch, parts, first, last in ((0, 4, 0, 4), (0, 2, 4, 8), (0, 1, 8, 15), (1, 1, 0, 15)):
        adam.param_groups[0]["lr"] = 0.02 * parts**-0.5
        batches = train.batches(64 // parts, seed=3, epoch=epoch, start_batch=first * parts)
        for batch in itertools.islice(batches, (last - first) * parts):
            adam.zero_grad()
            F.binary_cross_entropy_with_logits(model(batch.features), batch.labels).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            adam.step()
    found = weights_after(plain_dataset, tables=tables, device=device)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[name], tensor, atol=2e-4 if device == "cuda" else 2e-5, rtol=0)


@pytest.mark.parametrize("stop", [2, 4, 6, 8, 11, 17])
def test_a_training_goes_on_from_any_batch(plain_dataset, stop) -> None:
    whole = weights_after(plain_dataset, tables="lazy", average_decay=0.9, stop=(stop,))
    resumed = weights_after(plain_dataset, tables="lazy", average_decay=0.9, stop=(stop,), goes_on=True)
    for name, tensor in whole.items():
        assert torch.equal(tensor, resumed[name])


def test_a_plateaus_drop_stays_in_later_phases(plain_dataset) -> None:
    engine = make_engine(model_of(plain_dataset), plain_dataset, TrainingSettings(**RAMP), seed=0)
    batches = engine.batches(0, 0)
    engine.step(next(batches))
    with engine.using(averaged=False):
        pass
    engine.drop(0.1)
    for batch in itertools.islice(batches, 8):
        engine.step(batch)
    assert engine.phase.parts == 1
    assert engine.engine.rule.rates == pytest.approx([0.002])
    engine.close()


def test_a_run_counts_batches(plain_dataset, tmp_path) -> None:
    config = {"model": SMALL, "training": {**RAMP, "epochs": 2, "eval_every": 15}}
    run = cr.train(plain_dataset, into=tmp_path / "run", config=config, progress=False)
    assert run.config["training"]["ramp"] == 0.6
    assert [line["step"] for line in run.metrics if "valid" in line] == [15, 30]
    assert run.report["training"]["rows_per_second"] * run.report["training"]["seconds"] == pytest.approx(1800)


def test_what_cannot_grow_is_refused(plain_dataset, tmp_path) -> None:
    with pytest.raises(ConfigError, match="schedule=cosine"):
        TrainingSettings(ramp=0.5, schedule="cosine")
    with pytest.raises(ConfigError, match=r"training\.ramp must be at least 0"):
        TrainingSettings(ramp=1.0)
    with pytest.raises(ConfigError, match=r"training\.ramp=0\.5"):
        check_distributed(Config.parse({"training": {"ramp": 0.5}}))
