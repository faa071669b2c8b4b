"""The step against the textbook, in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from crossrank.training import TrainingSettings
from crossrank.training.optimizer import Optimizer
from crossrank.training.rule import UpdateRule


class Quadratic(nn.Module):
    """A loss whose gradient is easy to write down: Σ c (w - target)² / 2 for two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3))
        self.second = nn.Parameter(torch.tensor([3.0, -2.0], dtype=torch.float64))

    def loss(self) -> torch.Tensor:
        return 5 * (self.first - 0.3).square().sum() + 40 * (self.second + 1).square().sum()


def textbook(steps: int, *, lr: float, clip: float, decay: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights and averaged weights by the formulas of Adam, of the norm clip, and of the moving average."""
    weights = np.concatenate([np.linspace(-1, 1, 6), [3.0, -2.0]])
    mean, square, average = np.zeros(8), np.zeros(8), weights.copy()
    for t in range(1, steps + 1):
        gradient = np.concatenate([10 * (weights[:6] - 0.3), 80 * (weights[6:] + 1)])
        norm = np.sqrt((gradient**2).sum())
        if clip and norm > clip:
            gradient = gradient * clip / (norm + 1e-6)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        weights = weights - lr * (mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.999**t)) + 1e-8)
        d = min(decay, (1 + t) / (10 + t))
        average = d * average + (1 - d) * weights
    return weights, average


def flat(model: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


@pytest.mark.parametrize(("clip", "decay"), [(10.0, 0.9999), (0.0, 0.95), (1.0, 0.5)])
def test_two_hundred_steps_equal_the_textbook(clip: float, decay: float) -> None:
    model = Quadratic()
    optimizer = Optimizer(model, TrainingSettings(learning_rate=0.01, clip_norm=clip, average_decay=decay))
    for _ in range(200):
        optimizer.step(model.loss())
    weights, average = textbook(200, lr=0.01, clip=clip, decay=decay)
    np.testing.assert_allclose(flat(model), weights, rtol=0, atol=1e-12)
    with optimizer.using(averaged=True):
        np.testing.assert_allclose(flat(model), average, rtol=0, atol=1e-12)
    np.testing.assert_allclose(flat(model), weights, rtol=0, atol=1e-12)


def test_changes_made_to_the_averaged_weights_are_undone() -> None:
    model = Quadratic()
    optimizer = Optimizer(model, TrainingSettings())
    optimizer.step(model.loss())
    before = flat(model)
    with optimizer.using(averaged=True), torch.no_grad():
        model.first.zero_()
    np.testing.assert_array_equal(flat(model), before)
    with optimizer.using(averaged=True):
        assert flat(model)[:6].any()


def test_a_restored_optimizer_goes_on_as_if_nothing_had_happened() -> None:
    through, stopped = Quadratic(), Quadratic()
    settings = TrainingSettings(learning_rate=0.05)
    first = Optimizer(through, settings)
    for _ in range(3):
        first.step(through.loss())
    saved = {name: tensor.clone() for name, tensor in first.state().items()}
    second = Optimizer(stopped, settings)
    second.restore(saved)
    for model, optimizer in ((through, first), (stopped, second)):
        for _ in range(4):
            optimizer.step(model.loss())
        with optimizer.using(averaged=True):
            model.averaged = flat(model)
    np.testing.assert_array_equal(flat(through), flat(stopped))
    np.testing.assert_array_equal(through.averaged, stopped.averaged)


def test_without_a_decay_there_is_no_average() -> None:
    model = Quadratic()
    optimizer = Optimizer(model, TrainingSettings(average_decay=0.0))
    optimizer.step(model.loss())
    raw = flat(model)
    with optimizer.using(averaged=True):
        np.testing.assert_array_equal(flat(model), raw)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_scheduled_steps_equal_torchs(schedule: str) -> None:
    steps, ours, theirs = 120, Quadratic(), Quadratic()
    settings = TrainingSettings(learning_rate=0.05, clip_norm=0.0, average_decay=0.0, schedule=schedule)
    optimizer = Optimizer(ours, settings, rule=UpdateRule(settings, total_steps=steps))
    adam = torch.optim.Adam(theirs.parameters(), lr=0.05)
    kinds = torch.optim.lr_scheduler
    scheduler = (
        kinds.LinearLR(adam, start_factor=1.0, end_factor=0.0, total_iters=steps)
        if schedule == "linear"
        else kinds.CosineAnnealingLR(adam, steps)
    )
    for _ in range(steps):
        optimizer.step(ours.loss())
        adam.zero_grad()
        theirs.loss().backward()
        adam.step()
        scheduler.step()
    np.testing.assert_allclose(flat(ours), flat(theirs), rtol=0, atol=1e-8)


def test_behind_its_last_step_a_schedule_stays_where_it_ended() -> None:
    settings = TrainingSettings(learning_rate=0.1, schedule="cosine", table_decay=0.5, average_decay=0.8)
    rule, end = UpdateRule(settings, total_steps=50), (1 + math.cos(math.pi * 49 / 50)) / 2
    assert rule.factor(50) == rule.factor(10**7) == pytest.approx(end)
    expected = [math.log(0.9), math.log(0.999), math.log(0.8), math.log(1 - 0.1 * 0.5 * end), 0.8]
    assert rule.on(torch.device("cpu")).numbers.tolist() == pytest.approx(expected, rel=1e-12)
