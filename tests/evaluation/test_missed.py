"""What a model misses, against a loop over the definition, and on tables whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from crossrank.evaluation.missed import RIDGE, missed_gain, rank_missed


def by_loop(logits, labels, cells, kind) -> list[float]:
    left, curved, gains = {}, {}, []
    for z, y, cell in zip(logits, labels, cells, strict=True):
        moved = z + left.get(cell, 0.0) / (curved.get(cell, 0.0) + RIDGE)
        if kind == "binary":
            p = 1 / (1 + math.exp(-z))
            one, other = (math.log(1 + math.exp(-s if y else s)) for s in (z, moved))
        else:
            p = z
            one, other = (y - z) ** 2, (y - moved) ** 2
        gains.append(one - other)
        left[cell] = left.get(cell, 0.0) + y - p
        curved[cell] = curved.get(cell, 0.0) + (p * (1 - p) if kind == "binary" else 1.0)
    return gains


@pytest.mark.parametrize("kind", ["binary", "real"])
def test_gains_equal_a_loop_over_the_definition(kind) -> None:
    draw = np.random.default_rng(0)
    logits, cells = draw.normal(size=400), draw.integers(0, 30, 400)
    labels = draw.integers(0, 2, 400) if kind == "binary" else draw.normal(size=400)
    found = missed_gain(logits, labels, cells, kind=kind)
    np.testing.assert_allclose(found, by_loop(logits, labels, cells, kind), rtol=1e-9, atol=1e-12)


def drawn(num_rows: int = 20_000, seed: int = 0):
    draw = np.random.default_rng(seed)
    columns = {name: draw.integers(0, 20, num_rows) for name in ("user", "item", "hour")}
    pairs = [("user", "item"), ("user", "hour"), ("item", "hour")]
    return draw, {pair: columns[pair[0]] * 20 + columns[pair[1]] for pair in pairs}


def test_a_planted_table_of_cells_is_found_and_its_gain_is_near_what_can_be_had() -> None:
    draw, cells = drawn(100_000)
    truth = draw.normal(size=400)[cells["user", "item"]]  # of full rank: a number of its own for each cell
    labels = 1.0 * (draw.random(len(truth)) < 1 / (1 + np.exp(-truth)))
    first, *others = rank_missed(np.zeros(len(truth)), labels, cells.items())
    possible = math.log(2) - np.mean(np.logaddexp(0, truth) - labels * truth)
    assert first.columns == ("user", "item")
    assert 0.7 * possible < first.gain < possible
    assert first.gain > 10 * first.error
    assert all(other.gain < first.gain / 10 for other in others)


def test_of_labels_that_are_noise_nothing_is_missed() -> None:
    for seed in range(5):
        draw, cells = drawn(seed=seed)
        labels = 1.0 * (draw.random(20_000) < 0.3)
        found = rank_missed(np.full(20_000, math.log(0.3 / 0.7)), labels, cells.items())
        assert all(one.gain < 0 for one in found)


def test_what_a_model_already_has_is_not_missed() -> None:
    draw, cells = drawn()
    truth = draw.normal(size=400)[cells["user", "item"]]
    labels = 1.0 * (draw.random(len(truth)) < 1 / (1 + np.exp(-truth)))
    assert all(one.gain < 0 for one in rank_missed(truth, labels, cells.items()))


def test_cells_that_occur_once_gain_nothing() -> None:
    draw = np.random.default_rng(0)
    (found,) = rank_missed(draw.normal(size=500), draw.integers(0, 2, 500), [(("a", "b"), draw.permutation(500))])
    assert (found.gain, found.repeated) == (0.0, 0.0)
