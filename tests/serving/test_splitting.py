"""A logit that is taken apart is the plain model's, in float64."""

from __future__ import annotations

import pytest
import torch

from crossrank.models import build_model, parse_model_settings
from crossrank.nn import CrossLayer, CrossNetwork
from crossrank.schema import Feature
from crossrank.serving.affine_layers import Sides
from crossrank.serving.deep_terms import Deep
from crossrank.serving.separable import Separable, SeparableStacked
from crossrank.serving.splitting import Split, can_split

WIDTHS = {"user": 5, "item": 3, "hour": 2, "tags": 3}
FEATURES = [
    *(Feature(name, "categorical", 9, embedding_dim=width) for name, width in WIDTHS.items()),
    Feature("age", "numeric"),
    Feature("price", "numeric", width=3),
]
ITEM = ("item", "tags", "price")  # between the others, so that no side is one slice
MIXTURES = [
    {"layer": "mixture", "rank": 2, "num_experts": 3, "gate": gate, **activation}
    for gate in ("softmax", "sigmoid", "constant")
    for activation in ({}, {"activation": "tanh"}, {"activation": "relu"})
]
SEPARABLE = {"context": ["user", "hour", "age"]}
SWITCHES = [
    {"inner": "relu"},
    {"gate": "information"},
    {"inner": "tanh", "heads": 2, "gate": "information", **SEPARABLE},
]
LOW_RANK = [{"layer": "low_rank", "rank": rank} for rank in (2, 12)]
LAYERS = [{"layer": "full"}, SEPARABLE, *SWITCHES, *LOW_RANK, *MIXTURES]
DEEP = {"deep": {"sizes": [6, 4]}}


def sides_of(layout, crossed: tuple[str, ...] = ()) -> tuple[Sides, int]:
    """The context's places and the item's, those last that are of a pair of them; how many these are."""
    context, item, pair = [], [], []
    for slot in layout.slots:
        (pair if slot.name in crossed else item if slot.name in ITEM else context).extend(range(slot.start, slot.stop))
    return Sides(torch.tensor(context), torch.tensor([*item, *pair])), len(pair)


def build(**settings):
    torch.manual_seed(0)
    model = build_model(parse_model_settings(settings), FEATURES).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


@torch.no_grad()
def assert_split(model, num_items: int, *, crossed: tuple[str, ...] = ()) -> Split:
    """The terms' logits of one context and of three with some items, against the model's."""
    sides, num_crossed = sides_of(model.layout, crossed)
    split = Split(model.terms(), sides, num_crossed=num_crossed)
    for count in (1, 3):
        c = torch.randn(count, len(sides.context)).double()
        v = torch.randn(num_items, len(sides.item) - num_crossed).double()
        z = torch.randn(count, num_items, num_crossed).double()  # of each pair
        x0 = torch.empty(count, num_items, model.layout.input_dim).double()
        x0[..., sides.context], x0[..., sides.item] = c[:, None], torch.cat([v.expand(count, -1, -1), z], dim=2)
        expected = model.logits(x0.flatten(0, 1)).unflatten(0, (count, num_items))
        found = split.logits(split.request(c), split.item(v), z if crossed else None)
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
        if split.inner_products:
            parts = split.item(v).split(split.widths, dim=1)[1:-1]
            products = sum(
                term.phi(c) @ term.psi(v, known).T + term.request(c).constant[:, None]
                for term, known in zip(split.inner_products, parts, strict=True)
            )
            torch.testing.assert_close(products + split.bias, expected, rtol=1e-11, atol=1e-11)
    return split


@pytest.mark.parametrize("num_items", [0, 1, 40])
@pytest.mark.parametrize("num_layers", [1, 2, 3, 4])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: "-".join(map(str, layer.values())))
@pytest.mark.parametrize("structure", ["cross-only", "parallel", "stacked"])
def test_a_logit_taken_apart_is_the_model_s(structure, layer, num_layers, num_items) -> None:
    assert_split(build(structure=structure, cross={**layer, "num_layers": num_layers}, **DEEP), num_items)


@pytest.mark.parametrize("num_items", [0, 1, 40])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: "-".join(map(str, layer.values())))
@pytest.mark.parametrize("structure", ["cross-only", "parallel", "stacked"])
def test_what_is_known_of_a_pair_alone_is_a_third_block(structure, layer, num_layers, num_items) -> None:
    model = build(structure=structure, cross={**layer, "num_layers": num_layers}, **DEEP)
    split = assert_split(model, num_items, crossed=("tags", "price"))
    assert split.widths[0] == WIDTHS["item"]
    assert not split.inner_products


@pytest.mark.parametrize("num_networks", [1, 2])
@pytest.mark.parametrize("structure", ["cross-only", "parallel", "stacked"])
def test_separable_layers_are_taken_apart_at_every_depth(structure, num_networks) -> None:
    cross = {**SEPARABLE, "num_layers": 3, "num_networks": num_networks}
    split = assert_split(build(structure=structure, cross=cross, **DEEP), 40)
    kinds = [type(term) for term in split.terms]
    several = [Separable] * num_networks
    assert kinds == {"cross-only": several, "parallel": [*several, Deep], "stacked": [SeparableStacked]}[structure]
    assert split.widths[1] == {"cross-only": 2, "parallel": 2, "stacked": num_networks}[structure] * split.widths[0]
    cross["context"] = ["user"]  # of a model that lets the rest of the context see the item
    split = assert_split(build(structure=structure, cross=cross, **DEEP), 40)
    assert not {Separable, SeparableStacked} & {type(term) for term in split.terms}


def test_two_separable_layers_need_no_matrix_for_each_request() -> None:
    split = assert_split(build(name="cross-net", cross={**SEPARABLE, "num_layers": 2}), 40)
    (term,) = split.inner_products
    assert term.phi(torch.randn(1, len(split.sides.context)).double()).shape == (1, sum(split.widths))


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("options", [(False, True), (True, False), (False, False)], ids=str)
@pytest.mark.parametrize("layer", [{}, {"layer": "low_rank", "rank": 2}, *MIXTURES[:4:3]], ids=str)
@pytest.mark.parametrize("structure", ["cross-only", "stacked"])
def test_layers_without_bias_or_residual_are_taken_apart_too(structure, layer, options, num_layers) -> None:
    model = build(structure=structure, cross={"num_layers": num_layers}, **DEEP)
    bias, residual = options
    model.cross[0] = CrossNetwork(
        model.layout.input_dim, num_layers=num_layers, bias=bias, residual=residual, **layer
    ).double()
    assert_split(model, 40)


@pytest.mark.parametrize("structure", ["cross-only", "parallel", "stacked"])
def test_several_networks_are_summed_or_stand_side_by_side(structure) -> None:
    assert_split(build(structure=structure, cross={"num_networks": 2}, **DEEP), 40)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_masked_crosses_of_x0_are_taken_apart_too(num_layers) -> None:
    assert_split(build(name="lcn", cross={"num_layers": num_layers}), 40)


@pytest.mark.parametrize("sizes", [[], [5], [6, 4]], ids=str)
def test_the_first_layer_of_a_deep_network_is_taken_apart(sizes) -> None:
    assert_split(build(name="dnn", deep={"sizes": sizes}), 40)
    assert_split(build(structure="stacked", deep={"sizes": sizes}), 40)


def test_an_item_of_two_full_layers_costs_three_numbers_for_each_of_its_own_and_one() -> None:
    split = assert_split(build(structure="cross-only", cross={"num_layers": 2}), 3)
    assert sum(split.widths) == 3 * len(split.sides.item) + 1
    split = assert_split(build(structure="cross-only", cross={"num_layers": 2, "layer": "low_rank", "rank": 2}), 3)
    assert sum(split.widths) == len(split.sides.item) + 4 * 2 + 1


def test_only_networks_of_up_to_two_affine_layers_are_inner_products() -> None:
    for layers, expected in ((1, True), (2, True), (3, False)):
        split = assert_split(build(structure="cross-only", cross={"num_layers": layers}), 3)
        assert bool(split.inner_products) is expected
    assert not assert_split(build(structure="parallel", **DEEP), 3).inner_products
    assert not assert_split(build(structure="cross-only", cross=MIXTURES[0]), 3).inner_products


def test_a_layer_whose_source_is_the_previous_x_is_not_taken_apart() -> None:
    assert can_split(build(cross={"gate": "information"}, **DEEP).terms())
    assert not can_split(build(cross={"gate": "information", "source": "previous"}, **DEEP).terms())


@pytest.mark.parametrize("gate", ["softmax", "sigmoid", "constant"])
def test_a_gated_last_layer_is_left_with_a_dot_product_for_each_expert(gate, monkeypatch) -> None:
    cross = {"layer": "mixture", "rank": 2, "num_experts": 3, "gate": gate, "num_layers": 1}
    model = build(structure="cross-only", cross=cross)
    split = assert_split(model, 40)
    read = 3 * 2 + (0 if gate == "constant" else 3)  # what goes into the experts, and the gates
    assert split.widths[1] == read + 3 * 2 + 1  # and each expert's way back under the head, with the bias
    monkeypatch.setattr(type(model.cross[0].layers[0]), "spread", None)
    c, v = torch.randn(2, len(split.sides.context)).double(), torch.randn(5, len(split.sides.item)).double()
    assert split.logits(split.request(c), split.item(v)).shape == (2, 5)  # without the way back to x0


class Doubled(CrossLayer):
    def forward(self, x0, xl):
        return 2 * super().forward(x0, xl)


def test_a_layer_with_a_forward_of_its_own_does_not_inherit_how_its_parent_is_taken_apart() -> None:
    model = build(structure="cross-only")
    assert can_split(model.terms())
    model.cross[0].layers[0] = Doubled(model.layout.input_dim)
    assert not can_split(model.terms())
