"""A loss for each path: by hand, by loops, and in every engine."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from crossrank.errors import ConfigError
from crossrank.models import build_model, parse_model_settings
from crossrank.models.dcn_v2 import DCNV2
from crossrank.runs import Run
from crossrank.training import TrainingSettings, train
from crossrank.training.checkpoint import Position
from crossrank.training.cuda.engine import AutogradSteps, CapturedEngine
from crossrank.training.engines import joint_engine, make_engine
from crossrank.training.heads import HEADS, with_heads
from crossrank.training.loss import LogLoss, PairwiseLogistic, SoftmaxLogLoss, SquaredError
from crossrank.training.rule import UpdateRule
from crossrank.training.trainer import take_steps

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"))
every_rule = pytest.mark.parametrize("heads", HEADS)


def entropy(logit: float, target: float) -> float:
    return target * math.log1p(math.exp(-logit)) + (1 - target) * math.log1p(math.exp(logit))


def square(logit: float, target: float) -> float:
    return (logit - target) ** 2


@pytest.mark.parametrize("heads", ["own", "distil"])
@pytest.mark.parametrize(
    ("base", "loss", "answer"),
    [(LogLoss(), entropy, lambda y: 1 / (1 + math.exp(-y))), (SquaredError(), square, lambda y: y)],
)
def test_a_loss_for_each_path_is_its_formula(heads, base, loss, answer):
    draw = np.random.default_rng(0)
    logits, weights = draw.normal(size=(9, 3)), draw.uniform(0.5, 2, 9)
    labels = draw.integers(0, 2, 9).astype(float)
    total = 0.0
    for y, t, weight in zip(logits, labels, weights, strict=True):
        mean = sum(y) / 3
        each = sum(loss(one, t if heads == "own" else answer(mean)) for one in y)
        total += weight * (each + (loss(mean, t) if heads == "distil" else 0.0))
    got = HEADS[heads](base)(*map(torch.from_numpy, (logits, labels, weights)))
    assert got.item() == pytest.approx(total / weights.sum(), rel=1e-12)


def test_distilling_teaches_the_paths_and_not_the_mean():
    """By y_m: (σ(y) - t) / M from the labels and σ(y_m) - σ(y) towards the mean, nothing through the mean itself."""
    logits = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0.0, 1, 1, 0, 1], dtype=torch.float64)
    HEADS["distil"](LogLoss())(logits, labels).backward()
    y = logits.detach().mean(dim=1, keepdim=True).sigmoid()
    expected = ((y - labels[:, None]) / 3 + logits.detach().sigmoid() - y) / 5
    assert_close(logits.grad, expected)


@pytest.mark.parametrize(("base", "loss"), [(LogLoss(), entropy), (SquaredError(), square)])
def test_a_path_weighs_by_how_much_it_is_worse_than_the_mean_over_the_batch(base, loss):
    draw = np.random.default_rng(1)
    logits, weights = draw.normal(size=(9, 3)), draw.uniform(0.5, 2, 9)
    labels = draw.integers(0, 2, 9).astype(float)

    def mean_loss(column):
        return sum(w * loss(y, t) for y, t, w in zip(column, labels, weights, strict=True)) / sum(weights)

    whole, each = mean_loss(logits.mean(axis=1)), [mean_loss(column) for column in logits.T]
    assert min(each) < whole < max(each), "one weight is zero, one is not"
    given = torch.from_numpy(logits).requires_grad_()
    got = HEADS["weighted"](base)(given, *map(torch.from_numpy, (labels, weights)))
    assert got.item() == pytest.approx(whole + sum(max(0.0, one - whole) * one for one in each), rel=1e-12)
    (gradient,) = torch.autograd.grad(got, given)
    shares = torch.tensor([max(0.0, one - whole) for one in each])  # constants, by which no gradient goes
    every = torch.stack([base(head, *map(torch.from_numpy, (labels, weights))) for head in given.unbind(1)])
    expected = base(given.mean(1), *map(torch.from_numpy, (labels, weights))) + (shares * every).sum()
    assert_close(gradient, torch.autograd.grad(expected, given)[0])


SETTINGS = {"tables": "lazy", "batch_size": 128, "learning_rate": 0.01, "precision": "float32", "device": "cpu"}


def model_of(dataset, seed=0, **more):
    torch.manual_seed(seed)
    values = {"embedding": {"dim": 4}, "structure": "parallel", "deep": {"sizes": [8]}, **more}
    return build_model(parse_model_settings(values), dataset.features)


def steps_of(engine, steps=20):
    for _ in take_steps(engine, Position(), total_steps=steps, batches_per_epoch=8):
        pass
    return engine


def weights_of(member):
    with member.using(averaged=False):
        return {name: tensor.cpu().clone() for name, tensor in member.model.state_dict().items()}


@every_rule
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_every_engine_makes_the_same_steps(heads, device, plain_dataset):
    settings = TrainingSettings(**SETTINGS, heads=heads)
    models = [model_of(plain_dataset, seed) for seed in range(2)]
    alone = [steps_of(make_engine(copy.deepcopy(one), plain_dataset, settings, seed=i)) for i, one in enumerate(models)]
    plain = steps_of(make_engine(copy.deepcopy(models[0]), plain_dataset, TrainingSettings(**SETTINGS), seed=0))
    assert not torch.allclose(weights_of(plain)["output.weight"], weights_of(alone[0])["output.weight"], atol=1e-3)
    near = {"rtol": 0, "atol": 1e-4 if device == "cpu" else 5e-4}
    loss = with_heads(LogLoss(), heads, models[0])
    captured = CapturedEngine(
        copy.deepcopy(models[0]), plain_dataset.train, settings, loss=loss, rule=UpdateRule(settings), seed=0,
        device=torch.device(device),
    )  # fmt: skip
    assert isinstance(captured.steps, AutogradSteps)
    assert_close(weights_of(steps_of(captured)), weights_of(alone[0]), **near)
    together = joint_engine(models, plain_dataset, [settings] * 2, seeds=range(2))
    for member, one in zip(steps_of(together).members, alone, strict=True):
        assert_close(weights_of(member), weights_of(one), **near)


@every_rule
def test_a_run_with_heads_answers_with_their_mean(heads, dataset, tmp_path):
    config = {
        "model": {"embedding": {"dim": 4}, "structure": "parallel", "deep": {"sizes": [8]}},
        "training": {"heads": heads, "max_steps": 12, "device": "cpu"},
    }
    train(dataset, into=tmp_path / "run", config=config)
    run = Run.open(tmp_path / "run")
    assert run.config["training"]["heads"] == heads
    features = next(iter(dataset.valid.batches(50))).features
    assert_close(run.model.heads(features).mean(dim=1), run.model(features), rtol=1e-4, atol=1e-5)


def test_models_and_losses_without_paths_or_answers_are_told(dataset):
    parallel = model_of(dataset)
    with pytest.raises(ConfigError, match="needs a model of several paths; DCNV2 has one"):
        with_heads(LogLoss(), "own", model_of(dataset, structure="stacked"))
    with pytest.raises(ConfigError, match=r"heads=distil needs a loss towards an answer.*PairwiseLogistic"):
        with_heads(PairwiseLogistic(), "distil", parallel)
    assert with_heads(PairwiseLogistic(), "own", parallel).needs_groups
    assert with_heads(LogLoss(), "none", model_of(dataset, structure="stacked")).__class__ is LogLoss
    parallel.num_outputs = 3
    with pytest.raises(ConfigError, match="several classes"):
        with_heads(SoftmaxLogLoss(), "own", parallel)


def test_paths_that_do_not_make_the_logit_are_refused(dataset):
    class Other(DCNV2):
        def logits(self, x0):
            return super().logits(x0) + 1

    model = model_of(dataset)
    model.__class__ = Other
    with pytest.raises(ConfigError, match="mean of the paths' logits must be the model's; Other answers"):
        with_heads(LogLoss(), "own", model)
