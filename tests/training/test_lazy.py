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
from crossrank.training.idle import stretch
from crossrank.training.lazy import LazyTable
from crossrank.training.optimizer import Optimizer
from crossrank.training.rule import Moved, UpdateRule


def rule(
    decay: float = 0.9999, *, learning_rate: float = 0.1, learning_rates=(), total_steps=0, **options
) -> UpdateRule:
    settings = TrainingSettings(learning_rate=learning_rate, average_decay=decay, **options)
    return UpdateRule(settings, total_steps=total_steps, learning_rates=learning_rates)


@given(
    st.integers(0, 300) | st.integers(65_000, 120_000),
    st.integers(0, 300),
    st.sampled_from([0.3, 0.9, 0.95, 0.9999]),
)
@settings(deadline=None, max_examples=100)
def test_what_is_left_of_an_average_is_the_product_of_its_decays(start, length, decay) -> None:
    stop = start + length
    expected = math.prod(min(decay, (1 + k) / (10 + k)) for k in range(start + 1, stop + 1))
    left = stretch(np.array([start]), stop, rule(decay).curves).left.item()
    assert left == pytest.approx(expected, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_of_the_present_step_stays_as_it_is(dtype) -> None:
    for step in (0, 7, 200_000):
        for parts in ([0.5, 0.1, 0.02, 0.7], [0.5, 0.0, 0.0, 0.7]):
            old = [torch.tensor([[value]], dtype=dtype) for value in parts]
            new = [part.clone() for part in old]
            rule().age(Moved(*new), since=torch.tensor([step]), now=step, rate=0.1)
            assert all(torch.equal(left, right) for left, right in zip(old, new, strict=True))


@pytest.mark.parametrize("table_decay", [0.0, 0.04])
def test_rows_that_share_steps_are_aged_as_each_by_itself(table_decay) -> None:
    draw, made = torch.Generator().manual_seed(5), rule(learning_rate=1e-3, table_decay=table_decay)
    for now in (40, 15_000, 150_000):  # distinct steps by a table, by a table and by sorting, by sorting
        since = now - torch.randint(0, 30, (200,), generator=draw) ** 3 % (now + 1)
        together = [torch.rand(200, 3, generator=draw, dtype=torch.float64) for _ in range(4)]
        alone = [part.clone() for part in together]
        made.age(Moved(*together), since=since, now=now, rate=1e-3)
        for i in range(200):
            made.age(Moved(*(part[i : i + 1] for part in alone)), since=since[i : i + 1], now=now, rate=1e-3)
        for left, right in zip(together, alone, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-12, atol=0)


def without_gradient(w, m, v, average, *, start, stop, decay, lr, factor=lambda k: 1.0, table_decay=0.0):
    """Step by step, from the formulas."""
    for t in range(start + 1, stop + 1):
        m, v, rate = 0.9 * m, 0.999 * v, lr * factor(t)
        w = (1 - rate * table_decay) * w - rate * m / (1 - 0.9**t) / (math.sqrt(v / (1 - 0.999**t)) + 1e-8)
        d = min(decay, (1 + t) / (10 + t))
        average = d * average + (1 - d) * w
    return w, m, v, average


def cosine(step: int, total: int = 3000) -> float:
    return (1 + math.cos(math.pi * min(step - 1, total - 1) / total)) / 2


@given(
    st.integers(1, 400) | st.sampled_from([255, 256, 2_900, 70_000, 199_000]),
    st.integers(0, 400) | st.just(1000),
    st.sampled_from([0.0, 0.3, 0.6, 0.9, 0.901, 0.93, 0.9999]),
    st.floats(-12, 0),
    st.sampled_from(["constant", "cosine", "table_decay"]),
)
@settings(deadline=None, max_examples=100)
def test_a_row_without_gradient_is_where_stepping_takes_it(start, length, decay, size, what) -> None:
    """For a gradient of any size, in units of the learning rate."""
    gradient, lr = -(10.0**size), 1e-3
    old, stop = (0.5, 0.1 * gradient, 0.001 * gradient**2, 0.7), start + length
    options = {"schedule": "cosine"} if what == "cosine" else {}
    shrinking = 0.04 if what == "table_decay" else 0.0
    made = rule(decay, learning_rate=lr, table_decay=shrinking, total_steps=3000, **options)
    w, m, v, average = (torch.tensor([[value]], dtype=torch.float64) for value in old)
    made.age(Moved(w, m, v, average if decay else None), since=torch.tensor([start]), now=stop, rate=lr)
    factor = cosine if what == "cosine" else lambda k: 1.0
    expected = without_gradient(*old, start=start, stop=stop, decay=decay, lr=lr, factor=factor, table_decay=shrinking)
    np.testing.assert_allclose([m.item(), v.item()], expected[1:3], rtol=1e-9)
    assert abs(w.item() - expected[0]) < 2e-6 * lr
    assert not decay or abs(average.item() - expected[3]) < 1e-5 * lr


def test_one_small_gradient_drifts_as_far_as_under_adam() -> None:
    """Where ε is as large as the root of v, and the corrections change the most."""
    for gradient in (1e-6, 1e-7, 1e-8, 1e-9):
        weight = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
        adam = torch.optim.Adam([weight], lr=1e-3)
        table = LazyTable(torch.zeros(1, 1, dtype=torch.float64), rule(0.0, learning_rate=1e-3))
        touched = table.read(torch.tensor([0]), 0)
        touched.weight.grad = torch.full((1, 1), gradient, dtype=torch.float64)
        table.update(touched, step=1)
        for step in range(1001):
            weight.grad = torch.full((1, 1), gradient if step == 0 else 0.0, dtype=torch.float64)
            adam.step()
        table.catch_up(1001)
        assert table.weight.item() == pytest.approx(weight.item(), rel=1e-6)


@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_lazy_rows_equal_torchs_adam_and_scheduler(schedule, size) -> None:
    """600 steps of gradients of one order of size, most rows idle at most steps."""
    draw, steps, warmup = np.random.default_rng(3), 600, 20
    start = 0.05 * draw.normal(size=(8, 3))
    weight = torch.tensor(start, requires_grad=True)
    adam = torch.optim.Adam([weight], lr=1e-3)

    def factor(i: int) -> float:
        passed = (i - warmup) / (steps - warmup)
        after = {"constant": 1.0, "linear": 1 - passed, "cosine": (1 + math.cos(math.pi * passed)) / 2}[schedule]
        return (i + 1) / warmup if i < warmup else after

    scheduler = torch.optim.lr_scheduler.LambdaLR(adam, factor)
    made = rule(0.0, learning_rate=1e-3, schedule=schedule, warmup_steps=warmup, total_steps=steps)
    table = LazyTable(torch.tensor(start), made)
    for step in range(1, steps + 1):
        rows = np.unique(draw.integers(0, 8, size=draw.integers(0, 3)) ** 2 // 8)
        gradient = np.zeros((8, 3))
        gradient[rows] = size * draw.normal(size=(len(rows), 3))
        weight.grad = torch.tensor(gradient)
        adam.step()
        scheduler.step()
        touched = table.read(torch.from_numpy(rows), step - 1)
        touched.weight.grad = torch.from_numpy(gradient[rows])
        table.update(touched, step=step)
    table.catch_up(steps)
    np.testing.assert_allclose(table.weight, weight.detach(), rtol=0, atol=1e-8)


def test_a_drop_starts_a_new_stretch() -> None:
    draw, made = np.random.default_rng(4), rule(0.9, learning_rate=1e-3, table_decay=0.1)
    table = LazyTable(torch.zeros(4, 2, dtype=torch.float64) + 0.1, made)
    weight = torch.zeros(4, 2, dtype=torch.float64) + 0.1
    adam = torch.optim.AdamW([weight.requires_grad_()], lr=1e-3, weight_decay=0.1)
    for step in range(1, 121):
        rows, gradient = draw.permutation(4)[: step % 2], np.zeros((4, 2))
        gradient[rows] = draw.normal(size=(len(rows), 2))
        weight.grad = torch.tensor(gradient)
        adam.step()
        touched = table.read(torch.from_numpy(rows), step - 1)
        touched.weight.grad = torch.from_numpy(gradient[rows])
        table.update(touched, step=step)
        if step == 60:
            table.catch_up(step)
            made.drop(0.1)
            adam.param_groups[0]["lr"] = 1e-4
    table.catch_up(120)
    np.testing.assert_allclose(table.weight, weight.detach(), rtol=0, atol=1e-10)


def test_the_curves_end_where_they_are_constant() -> None:
    for decay in (0.9, 0.9999):
        table = rule(decay).curves.table
        assert np.isfinite(table).all()
        np.testing.assert_allclose(table[-1, :8], table[-2, :8], rtol=1e-6)


@given(st.lists(st.integers(0, 6), min_size=0, max_size=30))
@settings(deadline=None, max_examples=40)
def test_each_row_is_found_among_the_distinct_ones(rows) -> None:
    for ordered in (False, True):
        table = LazyTable(torch.zeros(7, 2), rule(0.0), ordered=ordered)
        distinct, places = table.distinct(torch.tensor(rows, dtype=torch.int64))
        assert (distinct.tolist() if ordered else sorted(distinct.tolist())) == sorted(set(rows))
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


def by_loops(steps, *, lr: float, table_lr: float, clip: float, decay: float) -> tuple[dict, dict]:
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
            rate = lr if key == "dense" else table_lr
            weights[key] = weights[key] - rate * mean[key] / (1 - 0.9**t) / spread
        d = min(decay, (1 + t) / (10 + t))
        for key in weights:
            average[key] = d * average[key] + (1 - d) * weights[key]
    return weights, average


@pytest.mark.parametrize(("tables", "table_lr"), [("lazy", None), ("lazy", 0.2), ("dense", 0.2)])
@pytest.mark.parametrize("decay", [0.9999, 0.6])
def test_lazy_training_equals_adam_of_every_row_at_every_step(decay, tables, table_lr) -> None:
    model, rates = Tiny(), {"learning_rate": 0.05, "table_learning_rate": table_lr}
    optimizer = Optimizer(model, TrainingSettings(tables=tables, clip_norm=10.0, average_decay=decay, **rates))
    for features, target in batches(40):
        optimizer.step((model(features) - target).square().mean())
    weights, average = by_loops(40, lr=0.05, table_lr=table_lr or 0.05, clip=10.0, decay=decay)
    for expected, averaged in ((weights, False), (average, True)):
        with optimizer.using(averaged=averaged):
            np.testing.assert_allclose(model.weight.detach(), expected["dense"], rtol=0, atol=1e-8)
            for i in range(3):
                for row, vector in enumerate(model.embedding.table(i).detach().numpy()):
                    np.testing.assert_allclose(vector, expected[i, row], rtol=0, atol=1e-8)


@pytest.mark.parametrize("tables", ["lazy", "dense"])
def test_rows_decay_as_under_torchs_adamw_and_other_weights_do_not(tables) -> None:
    model, other = Tiny(), Tiny()
    rates = {"learning_rate": 0.05, "table_learning_rate": 0.02, "table_decay": 0.5}
    optimizer = Optimizer(model, TrainingSettings(tables=tables, clip_norm=0.0, average_decay=0.0, **rates))
    rows = {"params": [other.embedding.weight], "lr": 0.02, "weight_decay": 0.5}
    adam = torch.optim.AdamW([{"params": [other.weight]}, rows], lr=0.05, weight_decay=0.0)
    for features, target in batches(40):
        optimizer.step((model(features) - target).square().mean())
        adam.zero_grad()
        (other(features) - target).square().mean().backward()
        adam.step()
    with optimizer.using(averaged=False):
        torch.testing.assert_close(model.weight, other.weight, rtol=0, atol=1e-8)
        torch.testing.assert_close(model.embedding.weight, other.embedding.weight, rtol=0, atol=1e-8)


def test_a_step_that_reads_a_single_row_keeps_its_moments() -> None:
    table = LazyTable(torch.zeros(3, 2), rule(0.9))
    touched = table.read(torch.tensor([1]), 0)
    touched.weight.grad = torch.tensor([[2.0, -4.0]])
    table.update(touched, step=1)
    torch.testing.assert_close(table.state[1, :4], torch.tensor([0.2, -0.4, 0.004, 0.016]))


@pytest.mark.parametrize("decay", [0.9999, 0.6])
def test_each_model_of_a_joint_table_may_have_its_own_learning_rate(decay) -> None:
    """Against Adam of every row at every step; most steps leave most rows alone, for dozens of steps."""
    draw, rates = np.random.default_rng(2), np.array([1e-3, 1e-3, 0.05, 0.05, 0.4, 0.4])
    start = draw.normal(size=(6, 3))
    table = LazyTable(torch.from_numpy(start.copy()), rule(decay, learning_rates=[1e-3, 0.05, 0.4]))
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
