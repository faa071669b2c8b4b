"""Layers and losses from outside crossrank, and the loss that compares rows: trained by every engine as written."""

from __future__ import annotations

import copy

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import crossrank as cr
from crossrank.data import SplitSettings
from crossrank.data.prepare import prepare
from crossrank.evaluation.metrics import grouped_auc
from crossrank.models import MODELS, Model, build_model, parse_model_settings, register_model
from crossrank.nn import CrossLayer, CrossNetwork, OutputLayer
from crossrank.schema import Categorical, Label, Schema
from crossrank.training import TrainingSettings
from crossrank.training.checkpoint import Position
from crossrank.training.cuda.dcn import DCNSteps
from crossrank.training.cuda.engine import AutogradSteps, CapturedEngine
from crossrank.training.loss import LogLoss, Loss
from crossrank.training.processor import ProcessorEngine
from crossrank.training.rule import UpdateRule
from crossrank.training.trainer import take_steps

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"))
SETTINGS = TrainingSettings(
    tables="lazy", batch_size=128, learning_rate=0.01, precision="float32", average_decay=0.9
)  # 900 rows: the last batch of an epoch is short


class GatedCrossLayer(CrossLayer):
    """x0 ⊙ (W xl + b) ⊙ σ(V xl) + xl"""

    def __init__(self, input_dim: int) -> None:
        super().__init__(input_dim)
        self.gate = nn.Linear(input_dim, input_dim, bias=False)

    def forward(self, x0, xl):
        return x0 * F.linear(xl, self.weight, self.bias) * self.gate(xl).sigmoid() + xl


def gated_network(network: CrossNetwork) -> CrossNetwork:
    network.layers = nn.ModuleList(GatedCrossLayer(layer.input_dim) for layer in network.layers)
    return network


class GatedModel(Model):
    def __init__(self, layout, settings) -> None:
        super().__init__(layout)
        self.cross = gated_network(CrossNetwork(layout.input_dim, num_layers=2))
        self.output = OutputLayer(layout.input_dim)

    def logits(self, x0):
        return self.output(self.cross(x0))


def model_of(dataset, **settings) -> Model:
    torch.manual_seed(0)
    return build_model(parse_model_settings({"embedding": {"dim": 4}, **settings}), dataset.features)


def trained(model: Model, dataset, loss: Loss, device: str | None = None) -> CapturedEngine | ProcessorEngine:
    """After 20 steps, on a processor where no device is given."""
    kind, where = (ProcessorEngine, {}) if device is None else (CapturedEngine, {"device": torch.device(device)})
    engine = kind(model, dataset.train, SETTINGS, loss=loss, rule=UpdateRule(SETTINGS), seed=7, **where)
    for _ in take_steps(engine, Position(), total_steps=20, batches_per_epoch=8):
        pass
    return engine


def same_weights(left, right, device: str) -> None:
    atol = 2e-5 if device == "cpu" else 5e-4  # another order of sums
    for averaged in (False, True):
        with left.using(averaged=averaged), right.using(averaged=averaged):
            other = right.model.state_dict()
            for name, tensor in left.model.state_dict().items():
                torch.testing.assert_close(tensor.cpu(), other[name].cpu(), rtol=0, atol=atol)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("how", ["a model of one's own", "layers of our own model replaced"])
def test_a_gate_of_ones_own_moves_as_under_autograd(how, device, plain_dataset, monkeypatch) -> None:
    if how == "a model of one's own":
        monkeypatch.setitem(MODELS, "gated", None)  # taken back afterwards
        register_model("gated")(GatedModel)
        model = model_of(plain_dataset, name="gated")
    else:
        model = model_of(plain_dataset, deep={"sizes": [8]})
        gated_network(model.cross[0])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items() if "gate" in name}
    expected = trained(copy.deepcopy(model), plain_dataset, LogLoss())
    got = trained(model, plain_dataset, LogLoss(), device)
    assert isinstance(got.steps, AutogradSteps)
    same_weights(got, expected, device)
    assert len(before) == 2
    for name, gate in before.items():
        assert (model.state_dict()[name].cpu() - gate).abs().max() > 0.01


class Smoothed(LogLoss):
    """Of labels that are never quite sure."""

    def __call__(self, logits, labels, weights=None, groups=None):
        return super().__call__(logits, 0.8 * labels + 0.1, weights, groups)


class Focal(Loss):
    """Rows that are easy count less."""

    def __call__(self, logits, labels, weights=None, groups=None):
        chance = torch.where(labels > 0, logits, -logits).sigmoid()  # of the label that came
        losses = -((1 - chance) ** 2) * chance.log()
        return losses.mean() if weights is None else (losses * weights).sum() / weights.sum()


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("loss", [Smoothed(), Focal()], ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("layer", ["full", "low_rank"])
def test_a_loss_of_ones_own_reaches_every_engine_as_written(layer, loss, device, plain_dataset) -> None:
    model = model_of(plain_dataset, cross={"layer": layer}, deep={"sizes": [8]})
    usual, expected = (trained(copy.deepcopy(model), plain_dataset, one) for one in (LogLoss(), loss))
    got = trained(model, plain_dataset, loss, device)
    assert isinstance(got.steps, DCNSteps if layer == "full" else AutogradSteps)
    same_weights(got, expected, device)
    assert (usual.model.output.weight - expected.model.output.weight).abs().max() > 0.001


def test_the_pairwise_loss_learns_the_order_within_groups(tmp_path) -> None:
    """Groups differ in level, which says nothing about the order; items differ in how they are liked."""
    draw, count = np.random.default_rng(0), 4000
    visit, item = draw.integers(0, 100, count), draw.integers(0, 20, count)
    level, liked = 2 * draw.normal(size=100), 1.5 * draw.normal(size=20)
    labels = (draw.random(count) < 1 / (1 + np.exp(-level[visit] - liked[item]))).astype(int)
    frame = pl.DataFrame({"visit": visit, "item": item.astype(str), "bought": labels})
    schema = Schema([Categorical(name="item")], Label(name="bought"), group="visit")
    dataset = prepare(frame, schema, tmp_path / "data", split=SplitSettings(fractions=(0.5, 0.3, 0.2)))
    training = {"loss": "pairwise", "device": "cpu", "batch_size": 256, "learning_rate": 0.02, "eval_every": 4}
    config = {"model": {"embedding": {"dim": 4}, "deep": {"sizes": [8]}}, "training": {**training, "epochs": 4}}
    run = cr.train(dataset, into=tmp_path / "run", config=config)
    values = [line["valid"]["grouped_auc"] for line in run.metrics if "valid" in line]
    assert run.report["valid"]["grouped_auc"] == max(values) > values[0] + 0.05
    best = grouped_auc(labels, liked[item], visit)
    assert run.report["test"]["grouped_auc"] > best - 0.03
