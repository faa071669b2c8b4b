"""One number for each pair of features, against loops over the blocks."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossrank.errors import ConfigError, ShapeError
from crossrank.models import build_model, parse_model_settings
from crossrank.nn import PairProducts
from crossrank.schema import Feature

FEATURES = [Feature("user", "categorical", 9), Feature("age", "numeric"), Feature("tags", "multivalent", 4)]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 3), st.integers(0, 10**6))
def test_each_number_is_the_sum_of_the_pair_s_blocks(widths, num_rows, seed):
    generator = torch.Generator().manual_seed(seed)
    dim = sum(widths)
    weight = torch.randn(dim, dim, dtype=torch.float64, generator=generator)
    s, x = torch.randn(2, num_rows, dim, dtype=torch.float64, generator=generator)
    layer = PairProducts(widths)
    got = layer(weight, s, x).numpy()
    assert got.shape == (num_rows, layer.output_dim) == (num_rows, len(widths) * (len(widths) + 1) // 2)
    slots = [range(sum(widths[:i]), sum(widths[: i + 1])) for i in range(len(widths))]
    for column, (i, j) in enumerate(layer.pairs):
        for row in range(num_rows):
            places = [(a, b) for one, two in {(i, j), (j, i)} for a in slots[one] for b in slots[two]]
            products = [s[row, a] * weight[a, b] * x[row, b] for a, b in places]
            assert got[row, column] == pytest.approx(sum(products).item(), rel=1e-9, abs=1e-9)
    np.testing.assert_allclose(got.sum(axis=1), (s * (x @ weight.T)).sum(dim=1), rtol=1e-9, atol=1e-9)


def test_mistakes_are_told():
    with pytest.raises(ConfigError, match="at least one feature"):
        PairProducts([])
    with pytest.raises(ConfigError, match="width must be at least 1; got width=0"):
        PairProducts([2, 0])
    with pytest.raises(ShapeError, match=r"x must have shape \(..., 3\)"):
        PairProducts([2, 1])(torch.ones(3, 3), torch.ones(1, 3), torch.ones(1, 4))


def built(structure="parallel", **cross):
    values = {"embedding": {"dim": 3}, "structure": structure, "cross": cross, "deep": {"sizes": [5]}}
    return build_model(parse_model_settings(values), FEATURES).double()


@pytest.mark.parametrize("cross", [{}, {"layer": "low_rank", "rank": 2}, {"context": ["user"]}, {"heads": 2}], ids=str)
@pytest.mark.parametrize("structure", ["stacked", "parallel"])
def test_the_deep_network_reads_the_pooled_numbers_of_every_layer_behind_the_others(structure, cross):
    model = built(structure, pooled="each", num_networks=2, **cross)
    x0 = torch.randn(4, 7).double()
    pools = list(model.pooled)
    assert len(pools) == 4 and model.terms() is None
    pooled, crossed = [], []
    for network in model.cross:
        xl = x0
        for layer in network.layers:
            pooled.append(pools[0](layer.matrix(xl), x0, xl))
            xl = layer(x0, xl)
        crossed.append(xl)
    if structure == "stacked":
        expected = model.output(model.deep(torch.cat([*crossed, *pooled], dim=1)))
    else:
        expected = model.output(torch.cat([*crossed, model.deep(torch.cat([x0, *pooled], dim=1))], dim=1))
    torch.testing.assert_close(model.logits(x0), expected)


def test_one_layer_under_a_deep_network_alone_is_a_product_network():
    """p of the first layer beside x0, and nothing of the crossed vector: ``logit = wᵀ deep([x0; p]) + b``, as PNN."""
    model = built(pooled="first", num_layers=1)
    with torch.no_grad():
        model.output.weight[:, :7] = 0
    x0 = torch.randn(4, 7).double()
    weight = model.cross[0].layers[0].weight
    user, tags, age = x0[:, :3], x0[:, 3:6], x0[:, 6:]
    blocks = {"user": slice(3), "tags": slice(3, 6), "age": slice(6, 7)}
    vectors = {"user": user, "tags": tags, "age": age}
    pairs = []
    for i, j in combinations_with_replacement(blocks, 2):
        kernel = weight[blocks[i], blocks[j]] + (weight[blocks[j], blocks[i]].T if i != j else 0)
        pairs.append((vectors[i] * (vectors[j] @ kernel.T)).sum(dim=1))
    hidden = model.deep(torch.cat([x0, torch.stack(pairs, dim=1)], dim=1))
    torch.testing.assert_close(model.logits(x0), hidden @ model.output.weight[0, 7:] + model.output.bias)


@pytest.mark.parametrize(
    ("structure", "cross", "message"),
    [
        ("cross-only", {"pooled": "first"}, "gives numbers to a deep network; got structure=cross-only"),
        ("parallel", {"pooled": "each", "layer": "mixture"}, "reads one matrix of each layer; got layer=mixture"),
    ],
)
def test_what_has_no_deep_network_or_no_matrix_is_refused(structure, cross, message):
    with pytest.raises(ConfigError, match=message):
        built(structure, **cross)
