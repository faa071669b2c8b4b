"""What the crosses say, against loops over the definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from crossrank.evaluation.crosses import explain, measure_crosses
from crossrank.models import build_model, parse_model_settings
from crossrank.nn import CrossLayer, GeneralCrossLayer, LowRankCrossLayer, MixtureCrossLayer, VectorCrossLayer

LAYERS = {
    "full": {"layer": "full"},
    "low_rank": {"layer": "low_rank", "rank": 3},
    "mixture": {"layer": "mixture", "rank": 2, "num_experts": 3, "gate": "sigmoid", "activation": "tanh"},
    "general": {"source": "previous", "inner": "tanh", "heads": 2, "gate": "information", "context": ["user", "hour"]},
}


def slopes(function, xl: torch.Tensor) -> torch.Tensor:
    """The mean over rows of the Jacobian of a function of one row."""
    return torch.stack([torch.autograd.functional.jacobian(function, row) for row in xl]).mean(dim=0)


@pytest.mark.parametrize("gate", ["softmax", "sigmoid", "constant"])
@pytest.mark.parametrize("activation", [None, "tanh"])
def test_the_matrix_of_a_mixture_is_its_mean_slope_with_the_gates_held(gate, activation) -> None:
    torch.manual_seed(0)
    layer = MixtureCrossLayer(5, rank=2, num_experts=3, gate=gate, activation=activation).double()
    xl = torch.randn(7, 5, dtype=torch.float64)
    expected = torch.zeros(5, 5, dtype=torch.float64)
    for row in xl:
        weights = layer.gates(row)

        def inner(x, weights=weights):
            total = torch.zeros(5, dtype=torch.float64)
            for k in range(3):
                hidden = layer.down[k] @ x
                if activation:
                    hidden = torch.tanh(layer.middle[k] @ torch.tanh(hidden))
                total = total + weights[k] * (layer.up[k] @ hidden)
            return total

        expected += torch.autograd.functional.jacobian(inner, row) / len(xl)
    torch.testing.assert_close(layer.matrix(xl), expected)


@pytest.mark.parametrize("gate", [None, "information"])
@pytest.mark.parametrize("inner", [None, "tanh"])
def test_the_matrix_of_a_general_layer_is_its_mean_slope_with_the_gates_held(gate, inner) -> None:
    torch.manual_seed(0)
    layer = GeneralCrossLayer(5, heads=3, gate=gate, inner=inner, context=[1, 2]).double()
    torch.nn.init.normal_(layer.bias)
    xl = torch.randn(7, 5, dtype=torch.float64)
    expected = torch.zeros(5, 5, dtype=torch.float64)
    allowed = torch.ones(5, 5, dtype=torch.float64).index_fill_(0, torch.tensor([1, 2]), 0)
    allowed[1:3, 1:3] = 1
    for row in xl:
        for m in range(3):
            held = torch.ones(5) if gate is None else (layer.gate.weight[5 * m : 5 * m + 5] * allowed @ row).sigmoid()

            def inside(x, m=m, held=held):
                z = layer.weight[m] * allowed @ x + layer.bias[m]
                return held * (torch.tanh(z) if inner else z)

            expected += torch.autograd.functional.jacobian(inside, row) / (3 * len(xl))
    torch.testing.assert_close(layer.matrix(xl), expected)


@torch.no_grad()
def test_the_strength_of_a_deeper_layer_is_of_products_with_the_previous_x_where_that_is_its_source(dataset) -> None:
    torch.manual_seed(1)
    settings = {"name": "cross-net", "embedding": {"dim": 3}, "cross": {"source": "previous"}}
    model = build_model(parse_model_settings(settings), dataset.features)
    features = next(iter(dataset.valid.batches(4096, seed=0))).features
    first, second = model.cross_networks()[0].layers
    x0 = model.embedding(features)
    x1 = first(x0, x0)
    centred = x1 - x1.mean(dim=0)
    w, i, j = second.weight[0], model.layout["country"].slice, model.layout["language"].slice
    head = model.output.weight[0]
    moved = ((head * centred)[:, i] * (centred[:, j] @ w[i, j].T)).sum(dim=1)
    moved += ((head * centred)[:, j] * (centred[:, i] @ w[j, i].T)).sum(dim=1)
    with torch.enable_grad():
        found = {cross.features: cross for cross in measure_crosses(model, dataset.valid) if cross.layer == 2}
    pair = found.get(("country", "language")) or found["language", "country"]
    assert pair.strength == pytest.approx(moved.square().mean().sqrt().item(), rel=1e-4)


def test_the_matrix_of_the_other_layers_is_what_they_multiply_with() -> None:
    xl = torch.randn(4, 5)
    full, low, vector = CrossLayer(5), LowRankCrossLayer(5, rank=2), VectorCrossLayer(5)
    torch.testing.assert_close(full.matrix(xl), full.weight.detach())
    torch.testing.assert_close(low.matrix(xl), slopes(lambda x: low.up @ (low.down @ x), xl).detach())
    torch.testing.assert_close(vector.matrix(xl) @ xl[0], (xl[0] @ vector.weight).detach().expand(5))


@pytest.mark.parametrize("structure", ["stacked", "parallel"])
def test_a_pair_s_strength_is_how_far_its_pooled_number_and_its_products_move_the_logit(dataset, structure) -> None:
    torch.manual_seed(1)
    settings = {"structure": structure, "embedding": {"dim": 3}, "deep": {"sizes": [6], "activation": "tanh"}}
    settings |= {"cross": {"num_layers": 1, "pooled": "first"}}
    model = build_model(parse_model_settings(settings), dataset.features)
    features = next(iter(dataset.valid.batches(4096, seed=0))).features
    x0 = model.embedding(features).detach()
    (layer,) = model.cross[0].layers
    crossed = layer(x0, x0).detach().requires_grad_()
    names, widths = model.layout.names, [slot.width for slot in model.layout.slots]
    parts, blocks = x0.split(widths, dim=1), [rows.split(widths, dim=1) for rows in layer.weight.detach().split(widths)]

    def products(i, j, left, right):
        return (left[i] * (right[j] @ blocks[i][j].T)).sum(dim=1)

    pairs = [(i, j) for i in range(len(widths)) for j in range(i, len(widths))]
    numbers = [products(i, j, parts, parts) + (products(j, i, parts, parts) if i != j else 0) for i, j in pairs]
    pooled = torch.stack(numbers, dim=1).requires_grad_()
    hidden = model.deep(torch.cat([crossed if structure == "stacked" else x0, pooled], dim=1))
    logits = model.output(hidden if structure == "stacked" else torch.cat([crossed, hidden], dim=1))
    by_crossed, by_pooled = torch.autograd.grad(logits.sum(), [crossed, pooled])
    torch.testing.assert_close(logits, model(features), rtol=1e-4, atol=1e-5)
    centred = [part - part.mean(dim=0) for part in parts]
    moving = [g * part for g, part in zip(by_crossed.split(widths, dim=1), centred, strict=True)]
    found = {cross.features: cross.strength for cross in measure_crosses(model, dataset.valid)}
    for number, (i, j) in enumerate(pairs):
        ways = [(i, j), (j, i)] if i != j else [(i, i)]
        moved = sum(products(a, b, moving, centred) for a, b in ways)
        moved = moved + by_pooled[:, number] * sum(products(a, b, centred, centred) for a, b in ways)
        assert found[names[i], names[j]] == pytest.approx(moved.square().mean().sqrt().item(), rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("structure", ["stacked", "parallel", "cross-only"])
@pytest.mark.parametrize("layer", LAYERS)
def test_norm_and_strength_equal_loops_over_the_definition(dataset, structure, layer) -> None:
    torch.manual_seed(1)
    settings = {"structure": structure, "embedding": {"dim": 3}, "cross": LAYERS[layer], "deep": {"sizes": [6]}}
    model = build_model(parse_model_settings(settings), dataset.features).double()
    rows = dataset.valid
    features = next(iter(rows.batches(4096, seed=0))).features
    features = features._replace(numeric=features.numeric.double())
    x0 = model.embedding(features).detach()
    first = model.cross_networks()[0].layers[0]
    output = first(x0, x0).detach().requires_grad_()
    gradient = torch.autograd.grad(rest(model, x0, output).sum(), output)[0].numpy()
    weight, x0 = first.matrix(x0).detach().numpy(), x0.numpy()
    centred = x0 - x0.mean(axis=0)
    pairs = {cross.features: cross for cross in measure_crosses(DoubleInput(model), rows) if cross.layer == 1}
    for left, right in [("country", "language"), ("hour", "price"), ("device", "device"), ("user", "tags")]:
        moved, norm = np.zeros(len(x0)), 0.0
        for one, two in {(left, right), (right, left)}:
            for a in range(model.layout[one].start, model.layout[one].stop):
                for b in range(model.layout[two].start, model.layout[two].stop):
                    moved += gradient[:, a] * centred[:, a] * weight[a, b] * centred[:, b]
                    norm += weight[a, b] ** 2
        pair = pairs.get((left, right)) or pairs[right, left]
        assert pair.strength == pytest.approx(math.sqrt((moved**2).mean()), rel=1e-5)
        assert pair.norm == pytest.approx(math.sqrt(norm), rel=1e-6)


def rest(model, x0: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """The logits, given the first cross layer's output."""
    crossed = model.cross_networks()[0].layers[1](x0, output)
    if model.structure == "stacked":
        return model.output(model.deep(crossed))
    if model.structure == "parallel":
        return model.output(torch.cat([crossed, model.deep(x0)], dim=-1))
    return model.output(crossed)


class DoubleInput(torch.nn.Module):
    """A float64 model that takes the float32 numbers of a dataset."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model, self.layout = model, model.layout
        self.cross_networks, self.cross_layers = model.cross_networks, model.cross_layers
        self.in_units, self.pools = model.in_units, model.pools

    @property
    def members(self):
        return [self]

    def forward(self, features):
        return self.model(features._replace(numeric=features.numeric.double()))


def test_every_pair_of_every_layer_is_listed_once(run) -> None:
    pairs = run.crosses
    names = run.model.layout.names
    per_layer = len(names) * (len(names) + 1) // 2
    assert len(pairs) == 2 * per_layer
    assert len({(frozenset(pair.features), pair.layer) for pair in pairs}) == 2 * per_layer


def test_explain_gives_the_strongest_first_and_only_what_was_asked(run) -> None:
    top = explain(run, top=5, layer=2)
    assert len(top) == 5
    assert all(pair.layer == 2 for pair in top)
    strengths = [pair.strength for pair in top]
    assert strengths == sorted(strengths, reverse=True)


def test_a_model_without_cross_layers_has_no_crosses(dataset) -> None:
    model = build_model(parse_model_settings({"name": "dnn"}), dataset.features)
    assert measure_crosses(model, dataset.valid) == []


def test_the_directed_view_lists_both_blocks_of_a_pair(run) -> None:
    pairs, directed = explain(run, layer=1), explain(run, layer=1, directed=True)
    names = run.model.layout.names
    blocks = {block.features: block for block in directed}
    assert blocks.keys() == {(a, b) for a in names for b in names if a != b}
    for pair in pairs:
        one, two = blocks[pair.features], blocks[pair.features[::-1]]
        assert pair.norm == pytest.approx(math.hypot(one.norm, two.norm))
        assert abs(one.strength - two.strength) <= pair.strength * (1 + 1e-5)  # the root mean square is a norm
        assert pair.strength <= (one.strength + two.strength) * (1 + 1e-5)


def test_directed_norms_are_those_of_the_blocks(run) -> None:
    weight = run.model.cross_networks()[0].layers[0].weight.detach()
    layout = run.model.layout
    for pair in explain(run, layer=1, directed=True):
        left, right = pair.features
        block = weight[layout[left].slice, layout[right].slice]
        assert pair.norm == pytest.approx(block.norm().item(), rel=1e-4)


def test_features_with_themselves_are_listed_apart(run) -> None:
    assert not any(cross.of_itself for cross in explain(run))
    selves = explain(run, layer=1, selves=True)
    assert {cross.features for cross in selves} == {(name, name) for name in run.model.layout.names}


def test_many_rows_are_traced_in_parts(dataset, monkeypatch) -> None:
    import crossrank.evaluation.crosses as crosses

    torch.manual_seed(0)
    model = build_model(parse_model_settings({"embedding": {"dim": 3}}), dataset.features)
    whole = measure_crosses(model, dataset.valid)
    monkeypatch.setattr(crosses, "TRACED_NUMBERS", 700)
    for one, two in zip(whole, measure_crosses(model, dataset.valid), strict=True):
        assert one.strength == pytest.approx(two.strength, rel=1e-4)
        assert one.strengths == pytest.approx(two.strengths, rel=1e-4)
