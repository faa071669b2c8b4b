"""Losses that compare the rows of a group, against double loops in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from crossrank.errors import ConfigError
from crossrank.training.loss import (
    LambdaRank,
    ListwiseSoftmax,
    LogLoss,
    LogLossAndPairs,
    PairwiseLogistic,
    find_loss,
)

LOSSES = {
    "pairwise": PairwiseLogistic(),
    "lambdarank": LambdaRank(),
    "listwise": ListwiseSoftmax(),
    "logloss+pairwise": LogLossAndPairs(0.3),
}


def softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


def pairs_of(y, w, rows):
    return [(i, j) for i in rows for j in rows if y[i] > y[j] and w[i] * w[j] > 0]


def groups_of(w, q):
    return [[i for i in range(len(q)) if q[i] == one and w[i] > 0] for one in sorted({*q}) if w[q == one].any()]


def pairwise(s, y, w, q):
    found = [pair for rows in groups_of(w, q) for pair in pairs_of(y, w, rows)]
    total = sum(w[i] * w[j] for i, j in found)
    return sum(w[i] * w[j] * softplus(s[j] - s[i]) for i, j in found) / total if found else 0.0


def lambdarank(s, y, w, q):
    total = mass = 0.0
    for rows in groups_of(w, q):
        best = sum((2 ** y[i] - 1) / math.log2(r + 2) for r, i in enumerate(sorted(rows, key=lambda i: -y[i])))
        if best == 0:
            continue
        rank = {i: r + 1 for r, i in enumerate(sorted(rows, key=lambda i: (-s[i], y[i])))}
        mean = sum(w[i] for i in rows) / len(rows)
        for i, j in pairs_of(y, w, rows):
            change = (2 ** y[i] - 2 ** y[j]) * (1 / math.log2(1 + rank[i]) - 1 / math.log2(1 + rank[j])) / best
            total += w[i] * w[j] / mean * abs(change) * softplus(s[j] - s[i])
        mass += mean
    return total / mass if mass else 0.0


def listwise(s, y, w, q):
    total = mass = 0.0
    for rows in groups_of(w, q):
        gain = sum(w[i] * (2 ** y[i] - 1) for i in rows)
        if gain == 0:
            continue
        mean = sum(w[i] for i in rows) / len(rows)
        normal = sum(w[i] / mean * math.exp(s[i]) for i in rows)
        total -= mean * sum(w[i] * (2 ** y[i] - 1) / gain * math.log(math.exp(s[i]) / normal) for i in rows)
        mass += mean
    return total / mass if mass else 0.0


def both(s, y, w, q):
    each = [y_ * softplus(-s_) + (1 - y_) * softplus(s_) for s_, y_ in zip(s, y, strict=True)]
    return float(np.average(each, weights=w)) + 0.3 * pairwise(s, y, w, q)


REFERENCES = {"pairwise": pairwise, "lambdarank": lambdarank, "listwise": listwise, "logloss+pairwise": both}


def drawn(name, *, rows=30, seed=0, groups=5, weighted=True):
    """Scores, labels with ties, weights with zeros, and groups in no order, one of them of a single row."""
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 2 if name.startswith("logloss") else 4, rows).astype(float)
    w = draw.uniform(0.2, 2.0, rows) * (draw.random(rows) > 0.2) if weighted else np.ones(rows)
    q = draw.integers(0, groups, rows)
    q[7] = groups + 3
    y[q == 1] = 0  # nothing to find in this group
    return draw.normal(size=rows), y, w, q


def tensors(s, y, w, q):
    return torch.tensor(s, requires_grad=True), torch.tensor(y), torch.tensor(w), torch.tensor(q)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_is_that_of_a_double_loop(name, weighted, seed) -> None:
    given = drawn(name, seed=seed, weighted=weighted)
    s, y, w, q = tensors(*given)
    got = LOSSES[name](s, y, w if weighted else None, q)
    assert got.item() == pytest.approx(REFERENCES[name](*given), rel=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_is_that_of_a_double_loop(name) -> None:
    given = drawn(name, rows=16)
    s, y, w, q = tensors(*given)
    LOSSES[name](s, y, w, q).backward()
    for row in range(16):
        step = np.eye(16)[row] * 1e-5
        ends = [REFERENCES[name](given[0] + side * step, *given[1:]) for side in (1, -1)]
        assert s.grad[row].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-8)
    assert torch.autograd.gradcheck(lambda s: LOSSES[name](s, y, w, q), (s,))


@pytest.mark.parametrize("name", LOSSES)
def test_neither_the_order_of_rows_nor_the_numbers_of_groups_matter(name) -> None:
    s, y, w, q = tensors(*drawn(name))
    LOSSES[name](s, y, w, q).backward()
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    shuffled = s.detach()[order].requires_grad_()
    again = LOSSES[name](shuffled, y[order], w[order], (9 - q)[order])
    again.backward()
    torch.testing.assert_close(again, LOSSES[name](s, y, w, q))
    torch.testing.assert_close(shuffled.grad, s.grad[order])


@pytest.mark.parametrize("name", ["pairwise", "lambdarank", "listwise"])
def test_only_differences_of_scores_in_a_group_count(name) -> None:
    s, y, w, q = tensors(*drawn(name))
    torch.testing.assert_close(LOSSES[name](s + 10 * q, y, w, q), LOSSES[name](s, y, w, q))


@pytest.mark.parametrize("name", LOSSES)
def test_a_row_of_weight_zero_is_not_there(name) -> None:
    s, y, w, q = tensors(*drawn(name))
    there = w > 0
    torch.testing.assert_close(LOSSES[name](s, y, w, q), LOSSES[name](s[there], y[there], w[there], q[there]))


@pytest.mark.parametrize("name", LOSSES)
def test_equal_weights_are_as_none(name) -> None:
    s, y, _, q = tensors(*drawn(name))
    torch.testing.assert_close(LOSSES[name](s, y, torch.full_like(s, 3.0), q), LOSSES[name](s, y, None, q))


def test_in_the_softmax_a_row_of_weight_two_is_two_rows() -> None:
    twice = torch.tensor([0, 0, 1, 2])
    s, y = torch.randn(3, dtype=torch.float64, requires_grad=True), torch.tensor([2.0, 0.0, 1.0])
    (weighted,) = torch.autograd.grad(ListwiseSoftmax()(s, y, torch.tensor([2.0, 1.0, 1.0]), torch.zeros(3)), s)
    (repeated,) = torch.autograd.grad(ListwiseSoftmax()(s[twice], y[twice], None, torch.zeros(4)), s)
    torch.testing.assert_close(weighted, repeated)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_rows_that_nothing_can_be_learned_from_have_no_gradient(name, rows) -> None:
    s = torch.randn(rows, requires_grad=True)
    loss = LOSSES[name](s, torch.zeros(rows), torch.zeros(rows), torch.zeros(rows))
    loss.backward()
    assert loss.item() == 0 and not s.grad.any()


def test_equal_scores_still_teach_an_order() -> None:
    """A model that answers the same to all rows must not stay so."""
    s = torch.zeros(4, requires_grad=True)
    LambdaRank()(s, torch.tensor([0.0, 3.0, 1.0, 0.0]), None, torch.zeros(4)).backward()
    assert s.grad[1] < 0 < s.grad[0] and s.grad[3] > 0


def test_scores_that_are_far_apart_stay_finite() -> None:
    for name, loss in LOSSES.items():
        s = torch.tensor([1e4, -1e4, 0.0], requires_grad=True)
        loss(s, torch.tensor([0.0, 1.0, 1.0]), None, torch.zeros(3)).backward()
        assert s.grad.isfinite().all(), name


def test_the_memory_of_pairs_is_that_of_the_groups_not_of_the_batch() -> None:
    """A matrix of all pairs of the rows would have 40 thousand million entries."""
    rows = 200_000
    s, y, q = torch.randn(rows, requires_grad=True), torch.arange(rows) % 2.0, torch.arange(rows) // 4
    for name, loss in LOSSES.items():
        loss(s, y, None, q).backward()
        assert s.grad.isfinite().all(), name


def test_the_sum_of_two_losses_has_the_weight_that_was_asked_for() -> None:
    s, y, w, q = tensors(*drawn("logloss"))
    expected = LogLoss()(s, y, w, q) + 0.25 * PairwiseLogistic()(s, y, w, q)
    torch.testing.assert_close(find_loss("logloss+pairwise", "binary", pair_weight=0.25)(s, y, w, q), expected)


@pytest.mark.parametrize("name", LOSSES)
def test_rows_without_groups_are_refused(name) -> None:
    with pytest.raises(ConfigError, match=r"compares rows of a group; the dataset has no groups\. Name the group"):
        LOSSES[name](torch.zeros(2), torch.ones(2))


@pytest.mark.parametrize("name", ["lambdarank", "listwise", "logloss"])
def test_a_number_has_no_grades(name) -> None:
    with pytest.raises(ConfigError, match=r'squared or pairwise; got .*kind "grade"'):
        find_loss(name, "real")
