"""Compressed runs: what is kept, what is refused, what is measured."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch

import crossrank.experiments.compress as module
from crossrank.data import EncodedDataset, Split
from crossrank.errors import ConfigError, RunError
from crossrank.evaluation import evaluate
from crossrank.experiments.compress import compress
from crossrank.folders import fresh_partial
from crossrank.models import build_model, parse_model_settings
from crossrank.nn import LowRankCrossLayer
from crossrank.runs import Run, write_run

RANK = 3


@pytest.fixture(scope="module")
def low(run, tmp_path_factory):
    """The small run with cross matrices of rank 3 exactly."""
    folder = tmp_path_factory.mktemp("low") / "run"
    folder.mkdir()
    model = build_model(parse_model_settings(run.config["model"]), run.encoder.features)
    model.load_state_dict(run.model.state_dict())
    torch.manual_seed(0)
    with torch.no_grad():
        for layer in model.cross_networks()[0].layers:
            width = len(layer.weight)
            layer.weight.copy_(0.1 * torch.randn(width, RANK) @ torch.randn(RANK, width))
    (folder / "metrics.jsonl").touch()
    write_run(folder, model=model, encoder=run.encoder, config=run.config, info=run.info, report=run.report)
    return Run.open(folder)


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    """Times are taken, but not with the patience that makes them true."""
    monkeypatch.setattr(module, "measure_latency", functools.partial(module.measure_latency, repeats=1))


@pytest.mark.parametrize("rank", [RANK, "auto"])
@pytest.mark.parametrize("given", ["data", "nothing"])
def test_a_matrix_of_that_rank_loses_nothing(low, dataset, clicks, tmp_path, rank, given) -> None:
    data = dataset if given == "data" else None
    found = compress(low, into=tmp_path / "run", rank=rank, dataset=data, finetune_steps=0)
    assert found.rank <= RANK
    reopened = Run.open(tmp_path / "run")
    assert reopened.config["model"]["cross"] == low.config["model"]["cross"] | {"layer": "low_rank", "rank": found.rank}
    layers = reopened.model.cross_networks()[0].layers
    assert all(isinstance(layer, LowRankCrossLayer) for layer in layers)
    if found.rank == RANK:
        np.testing.assert_allclose(reopened.predict(clicks), low.predict(clicks), atol=1e-4)


def test_what_is_said_of_the_compressed_run_is_measured(run, dataset, tmp_path) -> None:
    found = compress(run.path, into=tmp_path / "run", rank=4, dataset=dataset.path)
    width, layers = run.model.layout.input_dim, 2
    saved = layers * (width**2 - 2 * width * 4)
    assert found.before["parameters"] - found.after["parameters"] == saved
    assert found.before["multiply_adds"] - found.after["multiply_adds"] == saved
    assert found.after["test"] == evaluate(found.run, dataset) == found.run.report["test"]
    assert found.before["test"] == pytest.approx(run.report["test"])
    assert set(found.speedup) == {1, 256}
    assert found.run.report["compression"]["rank"] == 4
    assert (found.run.info["seed"], found.run.metrics) == (run.info["seed"], [])
    assert {path.name for path in found.run.path.glob("*.json")} >= {"crosses.json", "spectrum.json", "curves.json"}


def test_auto_takes_the_smallest_rank_tried_that_is_good_enough(run, dataset, tmp_path, monkeypatch) -> None:
    full = losses(run, dataset.valid)
    bounds = {}
    for rank in (1, 2, 3):
        found = compress(run, into=tmp_path / str(rank), rank=rank, dataset=dataset, finetune_steps=0)
        excess = losses(found.run, dataset.valid) - full
        bounds[rank] = excess.mean() + excess.std(ddof=1) / len(excess) ** 0.5
    monkeypatch.setattr(module, "TOLERANCE", min(bounds.values()) + 1e-7)
    expected = min(bounds, key=bounds.get)
    assert compress(run, into=tmp_path / "auto", dataset=dataset, finetune_steps=0).rank == expected


def test_auto_counts_the_weights_of_the_validation_rows(run, dataset, tmp_path, monkeypatch) -> None:
    first = compress(run, into=tmp_path / "1", rank=1, dataset=dataset, finetune_steps=0).run
    excess = losses(first, dataset.valid) - losses(run, dataset.valid)
    better = excess < 0
    monkeypatch.setattr(module, "TOLERANCE", excess[better].mean() / 2)
    with pytest.raises(ConfigError, match="The validation loss"):  # where each row counts once
        compress(run, into=tmp_path / "once", dataset=dataset, finetune_steps=0)
    weighted = EncodedDataset.open(dataset.path)
    rows = dataclasses.replace(weighted.valid.rows, weights=np.where(better, 1.0, 1e-6).astype(np.float32))
    weighted.valid = Split(rows)
    assert compress(run, into=tmp_path / "weighted", dataset=weighted, finetune_steps=0).rank == 1


def losses(run, rows) -> np.ndarray:
    """Each row's log loss, from its probability."""
    logits = run.model.predict_logits(batch.features for batch in rows.batches(64)).double()
    chance = logits.sigmoid().numpy()
    return -np.log(np.where(rows.labels == 1, chance, 1 - chance))


def test_no_rank_that_is_good_enough_is_an_error_and_leaves_nothing(run, dataset, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "TOLERANCE", -1.0)
    with pytest.raises(ConfigError, match="The validation loss of a rank up to 16 must be"):
        compress(run, into=tmp_path / "run", dataset=dataset, finetune_steps=0)
    with pytest.raises(ConfigError, match=r"99\.9% of the energy"):
        compress(run, into=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_fine_tuning_brings_the_logits_nearer_and_moves_the_cross_layers_alone(run, dataset, tmp_path) -> None:
    rows = [batch.features for batch in dataset.test.batches(64)]
    full, apart = run.model.predict_logits(rows), {}
    for steps in (0, 40):
        found = compress(run, into=tmp_path / str(steps), rank=2, dataset=dataset, finetune_steps=steps).run
        apart[steps] = (found.model.predict_logits(rows) - full).square().mean().item()
        kept = {name: tensor for name, tensor in found.model.state_dict().items() if not name.startswith("cross.")}
        assert kept.keys() == {name for name in run.model.state_dict() if not name.startswith("cross.")}
        assert all(torch.equal(tensor, run.model.state_dict()[name]) for name, tensor in kept.items())
    assert apart[40] < 0.7 * apart[0]


def test_compressing_leaves_the_caller_as_it_was(run, dataset, tmp_path, monkeypatch) -> None:
    weights = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    monkeypatch.setattr(module, "TOLERANCE", 1.0)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    compress(run, into=tmp_path / "run", dataset=dataset, finetune_steps=2)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in run.model.state_dict().items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank must be from 1 to 16"),
        ({"rank": 17}, "rank must be from 1 to 16"),
    ],
)
def test_what_cannot_be_done_is_refused(run, tmp_path, options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        compress(run, into=tmp_path / "run", **options)


def test_layers_that_are_narrow_already_are_refused(run, dataset, tmp_path) -> None:
    narrow = compress(run, into=tmp_path / "once", rank=2).run
    with pytest.raises(ConfigError, match="got low-rank cross layers"):
        compress(narrow, into=tmp_path / "twice", rank=1)


def test_a_folder_in_the_way_is_replaced_only_when_told(run, tmp_path) -> None:
    compress(run, into=tmp_path / "run", rank=2)
    with pytest.raises(RunError, match="must not exist yet"):
        compress(run, into=tmp_path / "run", rank=3)
    assert compress(run, into=tmp_path / "run", rank=3, overwrite=True).rank == 3


def test_an_unfinished_training_of_that_name_is_kept(run, tmp_path) -> None:
    partial = fresh_partial(tmp_path / "run", RunError)
    (partial / "checkpoint").mkdir()
    (partial / "checkpoint" / "position.json").write_text("{}")
    (partial / "plan.json").write_text("{}")
    with pytest.raises(RunError, match="holds an unfinished training"):
        compress(run, into=tmp_path / "run", rank=2)
    assert (partial / "plan.json").is_file()
