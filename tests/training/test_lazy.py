"""Lazy updates against a loop over every row and every step, in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from crossrank.nn import Bag, FeatureEmbedding, Features
from crossrank.training import TrainingSettings
from crossrank.training.idle import curves, idle
from crossrank.training.lazy import LazyTable
from crossrank.training.optimizer import Optimizer


@given(
    st.integers(0, 300) | st.integers(65_000, 120_000),
    st.integers(0, 300),
    st.sampled_from([0.3, 0.9, 0.95, 0.9999]),
)
@settings(deadline=None, max_examples=100)
def test_what_is_left_of_an_average_is_the_product_of_its_decays(start, length, decay) -> None:
    stop = start + length
    expected = math.prod(min(decay, (1 + k) / (10 + k)) for k in range(start + 1, stop + 1))
    kept = idle(torch.tensor([start]), torch.tensor(stop), decay=decay, dtype=torch.float64).kept.item()
    assert kept == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_a_row_of_the_present_step_stays_as_it_is() -> None:
    for step in (0, 7, 200_000):
        factors = idle(torch.tensor([step]), torch.tensor(step), decay=0.9999, dtype=torch.float64)
        assert [factor.item() for factor in factors[:5]] == [1, 1, 0, 1, 0]


def adam_without_gradient(w, m, v, average, *, start, stop, decay, lr=0.1, epsilon=0.0):
    """Step by step, from the formulas."""
    for t in range(start + 1, stop + 1):
        m, v = 0.9 * m, 0.999 * v
        w = w - lr * m / (1 - 0.9**t) / (math.sqrt(v / (1 - 0.999**t)) + epsilon)
        d = min(decay, (1 + t) / (10 + t))
        average = d * average + (1 - d) * w
    return w, m, v, average


@given(st.integers(1, 200_000), st.integers(0, 400), st.sampled_from([0.0, 0.3, 0.6, 0.9, 0.93, 0.9999]))
@settings(deadline=None, max_examples=80)
def test_a_row_without_gradient_is_where_stepping_takes_it(start, length, decay) -> None:
    w, m, v, average = 0.5, -0.3, 0.02, 0.7
    stop = start + length
    factors = idle(torch.tensor([start]), torch.tensor(stop), decay=decay, dtype=torch.float64)
    direction = 0.1 * m / math.sqrt(v)
    kept, moved, carried = factors.kept.item(), factors.weight.item(), factors.average.item()
    got = [w - direction * moved, factors.mean.item() * m, factors.square.item() * v]
    got.append(kept * average + (1 - kept) * w - direction * carried)
    expected = adam_without_gradient(w, m, v, average, start=start, stop=stop, decay=decay)
    np.testing.assert_allclose(got[: 4 if decay else 3], expected[: 4 if decay else 3], rtol=0, atol=1e-8)


def test_the_curves_end_where_they_are_constant() -> None:
    for decay in (0.9, 0.9999):
        for curve in curves(decay):
            assert torch.isfinite(curve).all()
            assert abs(curve[-1] - curve[-2]) < 1e-6


@given(st.lists(st.integers(0, 6), min_size=0, max_size=30))
@settings(deadline=None, max_examples=40)
def test_each_row_is_found_among_the_distinct_ones(rows) -> None:
    table = LazyTable(torch.zeros(7, 2), learning_rate=0.1, decay=0.0)
    distinct, places = table.distinct(torch.tensor(rows, dtype=torch.int64))
    assert sorted(distinct.tolist()) == sorted(set(rows))
    assert distinct[places].tolist() == rows


class Tiny(nn.Module):
    """Embeddings of two widths with a bag, and one dense weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = FeatureEmbedding([6, 9, 5], [2, 3, 2], num_multivalent=1, num_numeric=1)
        self.weight = nn.Parameter(torch.randn(8))
        self.double()

    def forward(self, features: Features) -> torch.Tensor:
        return (self.embedding(features) * self.weight).sum(dim=1)


def batches(count: int) -> list[tuple[Features, torch.Tensor]]:
    made, generator = [], np.random.default_rng(1)
    for _ in range(count):
        ids = torch.from_numpy(generator.integers(0, [6, 9], size=(4, 2)))
        bag = Bag(torch.from_numpy(generator.integers(0, 5, 5)), torch.tensor([0, 2, 2, 4, 5]))
        numbers = torch.from_numpy(generator.normal(size=(4, 1)))
        made.append((Features(ids, numbers, (bag,)), torch.from_numpy(generator.normal(size=4) * 30)))
    return made


def by_loops(steps, *, lr: float, clip: float, decay: float) -> tuple[dict, dict]:
    """The textbook: Adam and average of every row at every step, without gradient where a batch does not read it."""
    model = Tiny()
    tables = [model.embedding.table(i).detach().numpy().copy() for i in range(3)]
    dense = model.weight.detach().numpy().copy()
    rows = {(i, r): table[r].copy() for i, table in enumerate(tables) for r in range(len(table))}
    weights = {**rows, "dense": dense}
    mean = {key: np.zeros_like(value) for key, value in weights.items()}
    square, average = {k: v.copy() for k, v in mean.items()}, {k: v.copy() for k, v in weights.items()}
    for t, (features, target) in enumerate(batches(steps), start=1):
        gradient: dict = {"dense": np.zeros(8)}
        ids, numbers, bag = features.categorical.numpy(), features.numeric.numpy(), features.bags[0]
        for b in range(4):
            inside = bag.ids[bag.offsets[b] : bag.offsets[b + 1]].tolist()
            members = [((0, ids[b, 0]), 0, 2, 1.0), ((1, ids[b, 1]), 2, 5, 1.0)]
            members += [((2, r), 5, 7, 1 / len(inside)) for r in inside]
            x0 = np.zeros(8)
            x0[7] = numbers[b, 0]
            for key, start, stop, share in members:
                x0[start:stop] += share * weights[key]
            error = 2 * (x0 @ weights["dense"] - target[b].item()) / 4
            gradient["dense"] += error * x0
            for key, start, stop, share in members:
                gradient[key] = gradient.get(key, 0) + error * share * weights["dense"][start:stop]
        norm = math.sqrt(sum((g**2).sum() for g in gradient.values()))
        scale = min(1.0, clip / (norm + 1e-6))
        for key in weights:
            g = gradient.get(key, np.zeros_like(weights[key]))
            mean[key] = 0.9 * mean[key] + 0.1 * scale * g
            square[key] = 0.999 * square[key] + 0.001 * (scale * g) ** 2
            spread = np.sqrt(square[key] / (1 - 0.999**t)) + 1e-8
            weights[key] = weights[key] - lr * mean[key] / (1 - 0.9**t) / spread
        d = min(decay, (1 + t) / (10 + t))
        for key in weights:
            average[key] = d * average[key] + (1 - d) * weights[key]
    return weights, average


@pytest.mark.parametrize("decay", [0.9999, 0.6])
def test_lazy_training_equals_adam_of_every_row_at_every_step(decay) -> None:
    model = Tiny()
    optimizer = Optimizer(
        model, TrainingSettings(tables="lazy", learning_rate=0.05, clip_norm=10.0, average_decay=decay)
    )
    for features, target in batches(40):
        optimizer.step((model(features) - target).square().mean())
    weights, average = by_loops(40, lr=0.05, clip=10.0, decay=decay)
    for expected, averaged in ((weights, False), (average, True)):
        with optimizer.using(averaged=averaged):
            np.testing.assert_allclose(model.weight.detach(), expected["dense"], rtol=0, atol=1e-8)
            for i in range(3):
                for row, vector in enumerate(model.embedding.table(i).detach().numpy()):
                    np.testing.assert_allclose(vector, expected[i, row], rtol=0, atol=1e-8)


def test_a_step_that_reads_a_single_row_keeps_its_moments() -> None:
    table = LazyTable(torch.zeros(3, 2), learning_rate=0.1, decay=0.9)
    touched = table.read(torch.tensor([1]), 0)
    touched.weight.grad = torch.tensor([[2.0, -4.0]])
    table.update(touched, step=1)
    torch.testing.assert_close(table.state[1, :4], torch.tensor([0.2, -0.4, 0.004, 0.016]))


@pytest.mark.parametrize("decay", [0.9999, 0.6])
def test_each_row_may_have_its_own_learning_rate(decay) -> None:
    """Against Adam of every row at every step; most steps leave most rows alone, for dozens of steps."""
    draw, rates = np.random.default_rng(2), np.array([1e-3, 1e-3, 0.05, 0.05, 0.4, 0.4])
    start = draw.normal(size=(6, 3))
    table = LazyTable(torch.from_numpy(start.copy()), learning_rate=torch.from_numpy(rates), decay=decay)
    weight, average, mean, square = start.copy(), start.copy(), np.zeros((6, 3)), np.zeros((6, 3))
    for t in range(1, 81):
        rows, gradient = draw.permutation(6)[: t % 2], np.zeros((6, 3))
        gradient[rows] = 100 * draw.normal(size=(len(rows), 3))
        touched = table.read(torch.from_numpy(rows), t - 1)
        np.testing.assert_allclose(touched.weight.detach(), weight[rows], rtol=0, atol=1e-8)
        touched.weight.grad = torch.from_numpy(gradient[rows])
        table.update(touched, step=t)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        weight -= rates[:, None] * mean / (1 - 0.9**t) / (np.sqrt(square / (1 - 0.999**t)) + 1e-8)
        d = min(decay, (1 + t) / (10 + t))
        average = d * average + (1 - d) * weight
    table.catch_up(80)
    np.testing.assert_allclose(table.weight, weight, rtol=0, atol=1e-8)
    np.testing.assert_allclose(table.average, average, rtol=0, atol=1e-8)


def test_reading_the_average_in_between_changes_nothing() -> None:
    ends = []
    for looks in (False, True):
        model = Tiny()
        optimizer = Optimizer(model, TrainingSettings(tables="lazy", learning_rate=0.05))
        for features, target in batches(10):
            optimizer.step((model(features) - target).square().mean())
            if looks:
                with optimizer.using(averaged=True):
                    pass
        with optimizer.using(averaged=True):
            ends.append(model.embedding.weight.detach().clone())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-8)


def test_where_every_row_is_touched_lazy_is_dense() -> None:
    ends = []
    for tables in ("lazy", "dense"):
        model = Tiny()
        optimizer = Optimizer(model, TrainingSettings(tables=tables, learning_rate=0.05))
        every = Features(
            torch.stack([torch.arange(9) % 6, torch.arange(9)], dim=1),
            torch.ones(9, 1, dtype=torch.float64),
            (Bag(torch.arange(9) % 5, torch.arange(10)),),
        )
        for _ in range(30):
            optimizer.step((model(every) - 5).square().mean())
        with optimizer.using(averaged=True):
            ends.append(model.embedding.weight.detach().clone())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-8)
