"""Separable cross layers: what the context may see, and what stays as in the full layer."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from crossrank.errors import ConfigError
from crossrank.models import build_model, parse_model_settings
from crossrank.nn import CrossLayer, CrossNetwork, SeparableCrossLayer
from crossrank.schema import Feature

CONTEXT = [0, 2, 3]


def test_the_context_is_the_same_for_every_item_at_every_depth():
    network = CrossNetwork(7, num_layers=4, layer="separable", context=CONTEXT)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)  # the forbidden block too: it is not read
    x0 = torch.randn(50, 7) * 10
    other = x0.clone()
    other[:, [1, 4, 5, 6]] = torch.randn(50, 4) * 10
    xl, other_l = x0, other
    for layer in network.layers:
        xl, other_l = layer(x0, xl), layer(other, other_l)
        assert torch.equal(xl[:, CONTEXT], other_l[:, CONTEXT])
        assert (xl != other_l)[:, [1, 4, 5, 6]].all()


def test_no_cross_of_the_first_layer_is_lost():
    """What c_i may not multiply, v_j multiplies: the products of a pair stand in the item's rows."""
    full, separable = CrossLayer(7).double(), SeparableCrossLayer(7, context=CONTEXT).double()
    item = [i for i in range(7) if i not in CONTEXT]
    with torch.no_grad():
        separable.weight.copy_(full.weight)
        separable.weight[torch.tensor(item)[:, None], CONTEXT] += full.weight[torch.tensor(CONTEXT)[:, None], item].T
    x0 = torch.randn(20, 7).double()
    assert_close(full(x0, x0).sum(dim=1), separable(x0, x0).sum(dim=1))


def test_the_forbidden_block_starts_at_zero_has_no_slope_and_is_not_told():
    layer = SeparableCrossLayer(7, context=CONTEXT)
    block = torch.zeros(7, 7, dtype=torch.bool)
    block[torch.tensor(CONTEXT)[:, None], [1, 4, 5, 6]] = True
    assert not layer.weight[block].any() and layer.weight[~block].all()
    x0 = torch.randn(9, 7)
    layer(x0, x0).square().sum().backward()
    assert not layer.weight.grad[block].any() and layer.weight.grad[~block].all()
    torch.nn.init.normal_(layer.weight)
    assert not layer.matrix(x0)[block].any()


def test_what_is_saved_is_what_a_full_layer_saves():
    assert set(SeparableCrossLayer(7, context=CONTEXT).state_dict()) == {"weight", "bias"}


@pytest.mark.parametrize("context", [[], [0, 1, 2], [0, 3], [-1, 0]])
def test_places_are_inside_x0_and_leave_some_to_the_item(context):
    with pytest.raises(ConfigError, match="leave some to the item"):
        SeparableCrossLayer(3, context=context)


FEATURES = [
    Feature("user", "categorical", 9),
    Feature("price=", "categorical", 5, column="price"),
    Feature("tags", "multivalent", 4),
    Feature("price", "numeric", width=2),
]


def built(**cross):
    return build_model(parse_model_settings({"embedding": {"dim": 3}, "cross": cross}), FEATURES)


def test_names_of_columns_become_all_their_places():
    layer = built(context=["price", "tags"]).cross[0].layers[1]
    assert layer.context.tolist() == [False] * 3 + [True] * 8


@pytest.mark.parametrize(
    ("cross", "message"),
    [
        (
            {"context": ["usr"]},
            "model.cross.context must be columns among 'user', 'price', 'tags'; got 'usr'. Did you mean 'user'",
        ),
        ({"context": ["user", "tags", "price"]}, "model.cross.context must leave columns to the item"),
        ({"context": ["user"], "layer": "low_rank"}, "is for full cross layers.*got layer=low_rank"),
        ({"context": ["user"], "layer": "mixture"}, "is for full cross layers.*got layer=mixture"),
    ],
)
def test_mistakes_in_the_names_are_told(cross, message):
    with pytest.raises(ConfigError, match=message):
        built(**cross)
