"""Wide & Deep: its formula, and the hash that chooses the weights of its crosses."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import make_features, random_model, random_rows
from references.wide_deep import wide_deep

from crossrank.errors import ConfigError
from crossrank.models import build_model, parse_model_settings
from crossrank.nn import HashedCrosses

DEEP = {"deep": {"sizes": [5, 3]}}


@settings(deadline=None, max_examples=40)
@given(
    counts=st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(0, 2)),
    buckets=st.integers(1, 40),
    every=st.booleans(),
    num_rows=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_logits_are_the_published_formula(counts, buckets, every, num_rows, seed):
    torch.manual_seed(seed)
    features = make_features(*counts)
    pairs = list(combinations(range(counts[0]), 2))[:: 1 if every else 2]
    crosses = "all" if every else [f"c{b}*c{a}" for a, b in pairs]
    config = {"name": "wide-deep", "crosses": crosses, "cross_buckets": buckets, **DEEP}
    model, rows = random_model(config, features, width=2), random_rows(features, num_rows)
    weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    x0, values = (part(rows).detach().numpy() for part in (model.embedding, model.linear.values.embedding))
    options = {"pairs": pairs, "vocab_sizes": [4 + i for i in range(counts[0])], "buckets": buckets}
    expected = [wide_deep(*row, weights, **options) for row in zip(x0, values, rows.categorical.numpy(), strict=True)]
    np.testing.assert_allclose(model(rows).detach().numpy(), expected, rtol=1e-10, atol=1e-10)


def test_gradients_are_right():
    torch.manual_seed(0)
    features = make_features(3, 1, 1)
    model, rows = (
        random_model({"name": "wide-deep", "cross_buckets": 25, **DEEP}, features, width=2),
        random_rows(features, 2),
    )
    assert torch.autograd.gradcheck(lambda *_: model(rows), tuple(model.parameters()))


def test_a_small_cross_has_a_weight_for_each_pair():
    crosses = HashedCrosses([(0, 1)], [6, 7], num_buckets=42)
    rows = crosses.rows(torch.cartesian_prod(torch.arange(6), torch.arange(7)))
    assert rows.flatten().tolist() == list(range(42))


def test_a_hashed_cross_spreads_its_pairs_evenly():
    sizes = [200, 300]
    crosses = HashedCrosses([(0, 1)], sizes, num_buckets=1000)
    rows = crosses.rows(torch.cartesian_prod(*map(torch.arange, sizes))).flatten()
    loads = rows.bincount(minlength=1000)  # sixty pairs each
    assert len(loads) == 1000 and loads.min() > 30 and loads.max() < 90


def test_the_hash_never_changes():
    """Weights on disk are found by it."""
    crosses = HashedCrosses([(0, 1), (3, 12)], [10**6] * 13, num_buckets=10_000)
    ids = torch.arange(13).repeat(2, 1) * torch.tensor([[1], [70_001]])
    assert crosses.rows(ids).tolist() == [[4138, 3399], [5112, 3865]]
    assert torch.equal(crosses.rows(ids.int()), crosses.rows(ids))


def test_the_largest_ids_do_not_overflow():
    crosses = HashedCrosses([(0, 1)], [2**31 - 1] * 2, num_buckets=1000)
    most, (m, n) = 2**31 - 2, (crosses.left_factors.item(), crosses.right_factors.item())
    assert crosses.rows(torch.tensor([[most, most]])).item() == (m * most + n * most) % (2**31 - 1) % 1000


def test_crosses_start_at_zero():
    crosses = HashedCrosses([(0, 1)], [5, 6], num_buckets=10)
    assert not crosses.table.weight.any()


@pytest.mark.parametrize("buckets", [0, 2**31])
def test_buckets_outside_the_hash_are_refused(buckets):
    with pytest.raises(ConfigError, match="num_buckets must be between 1 and"):
        HashedCrosses([(0, 1)], [5, 6], num_buckets=buckets)


@pytest.mark.parametrize("cross", ["c0*c9", "c0", "c0*c0", "c0*n0"])
def test_a_cross_of_unknown_columns_is_refused(cross):
    settings = parse_model_settings({"name": "wide-deep", "crosses": [cross]})
    with pytest.raises(ConfigError, match=r"two categorical features as 'a\*b'; got"):
        build_model(settings, make_features(3, 0, 1))


def test_no_crosses_leave_a_linear_term():
    model = build_model(parse_model_settings({"name": "wide-deep", "crosses": "none"}), make_features(3, 0, 1))
    assert model.linear.crosses is None


def test_unseen_values_are_filled_in_tables_but_not_in_crosses():
    model = build_model(parse_model_settings({"name": "wide-deep"}), make_features(2, 0, 0))
    torch.nn.init.normal_(model.linear.crosses.table.weight)
    before = model.linear.crosses.table.weight.clone()
    model.fill_untrained_rows({"c0": [0, 0, 3, 1], "c1": [0, 0, 1, 1, 2]})
    assert torch.equal(model.linear.crosses.table.weight, before)
    vectors = model.embedding.table(0)
    torch.testing.assert_close(vectors[1], 0.75 * vectors[2] + 0.25 * vectors[3])
