"""Each numbered equation against loops over plain numbers, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from crossrank.nn import (
    CrossLayer,
    CrossNetwork,
    DeepNetwork,
    GeneralCrossLayer,
    LowRankCrossLayer,
    MixtureCrossLayer,
    OutputLayer,
    SeparableCrossLayer,
    VectorCrossLayer,
)

Array = np.ndarray
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
examples = settings(deadline=None, max_examples=40)


def randomised(module: nn.Module, seed: int) -> nn.Module:
    """Double precision, and no weight left at zero: a bias in the wrong place must show."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.double().parameters():
        nn.init.normal_(parameter, generator=generator)
    return module


def rows(count: int, dim: int, seed: int) -> Tensor:
    return torch.randn(count, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def times(matrix: Array, vector: Array) -> list[float]:
    return [sum(matrix[i][j] * vector[j] for j in range(len(vector))) for i in range(len(matrix))]


def cross(x0: Array, inner: list[float], xl: Array, *, residual: bool) -> list[float]:
    return [x0[i] * inner[i] + (xl[i] if residual else 0.0) for i in range(len(x0))]


def bias_of(layer: nn.Module) -> Array:
    return np.zeros(layer.input_dim) if layer.bias is None else layer.bias.detach().numpy()


def eq1(layer: CrossLayer, x0: Array, xl: Array) -> list[float]:
    b, product = bias_of(layer), times(layer.weight.detach().numpy(), xl)
    return cross(x0, [product[i] + b[i] for i in range(len(b))], xl, residual=layer.residual)


def eq2(layer: LowRankCrossLayer, x0: Array, xl: Array) -> list[float]:
    b = bias_of(layer)
    product = times(layer.up.detach().numpy(), times(layer.down.detach().numpy(), xl))
    return cross(x0, [product[i] + b[i] for i in range(len(b))], xl, residual=layer.residual)


GATES: dict[str, Callable[[list[float]], list[float]]] = {
    "softmax": lambda s: [math.exp(v) / sum(math.exp(u) for u in s) for v in s],
    "sigmoid": lambda s: [1 / (1 + math.exp(-v)) for v in s],
}
FUNCTIONS: dict[str, Callable[[float], float]] = {"tanh": math.tanh, "relu": lambda v: max(v, 0.0)}


def eq3_and_4(layer: MixtureCrossLayer, x0: Array, xl: Array) -> list[float]:
    b, up, down = bias_of(layer), layer.up.detach().numpy(), layer.down.detach().numpy()
    weights = [1.0] * layer.num_experts
    if layer.gate is not None:
        weights = GATES[layer.gate_name](times(layer.gate.weight.detach().numpy(), xl))
    total = [xl[i] if layer.residual else 0.0 for i in range(len(x0))]
    for k in range(layer.num_experts):
        hidden = times(down[k], xl)
        if layer.middle is not None:
            g = FUNCTIONS[layer.activation_name]
            hidden = [g(v) for v in times(layer.middle.detach().numpy()[k], [g(v) for v in hidden])]
        back = times(up[k], hidden)
        for i in range(len(x0)):
            total[i] += weights[k] * (x0[i] * (back[i] + b[i]))
    return total


def separable(layer: SeparableCrossLayer, x0: Array, xl: Array) -> list[float]:
    """The two lines of the formula, block by block."""
    w, b = layer.weight.detach().numpy(), bias_of(layer)
    sides = layer.context.tolist()
    seen = {True: [j for j, side in enumerate(sides) if side], False: range(len(sides))}  # by context, by item
    inner = [sum(w[i][j] * xl[j] for j in seen[side]) + b[i] for i, side in enumerate(sides)]
    return cross(x0, inner, xl, residual=layer.residual)


def general(layer: GeneralCrossLayer, x0: Array, xl: Array) -> list[float]:
    """s ⊙ 1/M Σ_m g(W_m x + b_m) ⊙ σ(V_m x) + x, head by head."""
    dim, g = len(x0), FUNCTIONS.get(layer.inner_name, lambda v: v)
    weight = layer.weight.detach().numpy().copy()
    gate = None if layer.gate is None else layer.gate.weight.detach().numpy().reshape(weight.shape).copy()
    for kernel in (weight, gate) if layer.context is not None else ():
        for i in range(dim) if kernel is not None else ():
            for j in range(dim):
                if layer.context[i] and not layer.context[j]:
                    kernel[:, i, j] = 0.0
    inner = [0.0] * dim
    for m in range(layer.heads):
        product = times(weight[m], xl)
        passed = [1.0] * dim if gate is None else GATES["sigmoid"](times(gate[m], xl))
        for i in range(dim):
            b = 0.0 if layer.bias is None else layer.bias[m, i].item()
            inner[i] += g(product[i] + b) * passed[i] / layer.heads
    return cross(x0 if layer.source == "x0" else xl, inner, xl, residual=layer.residual)


def dcn_v1(layer: VectorCrossLayer, x0: Array, xl: Array) -> list[float]:
    b, w = bias_of(layer), layer.weight.detach().numpy()
    score = sum(xl[j] * w[j] for j in range(len(w)))
    return [x0[i] * score + b[i] + (xl[i] if layer.residual else 0.0) for i in range(len(w))]


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Rows, width, rank up to the width, experts."""
    dim = draw(st.integers(1, 6))
    return draw(st.integers(1, 4)), dim, draw(st.integers(1, dim)), draw(st.integers(1, 3))


def assert_rows_follow(layer: nn.Module, equation: Callable[..., list[float]], count: int, seed: int) -> None:
    randomised(layer, seed)
    x0, xl = rows(count, layer.input_dim, seed + 1), rows(count, layer.input_dim, seed + 2)
    expected = [equation(layer, a, b) for a, b in zip(x0.numpy(), xl.numpy(), strict=True)]
    np.testing.assert_allclose(layer(x0, xl).detach().numpy(), expected, **CLOSE)


@examples
@given(shapes(), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_a_cross_layer_is_equation_1(shape, bias, residual, seed):
    count, dim, _, _ = shape
    assert_rows_follow(CrossLayer(dim, bias=bias, residual=residual), eq1, count, seed)


@examples
@given(shapes(), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_a_low_rank_layer_is_equation_2(shape, bias, residual, seed):
    count, dim, rank, _ = shape
    assert_rows_follow(LowRankCrossLayer(dim, rank=rank, bias=bias, residual=residual), eq2, count, seed)


@pytest.mark.parametrize("activation", [None, "tanh", "relu"])
@pytest.mark.parametrize("gate", ["softmax", "sigmoid", "constant"])
@settings(deadline=None, max_examples=15)
@given(shapes(), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_a_mixture_layer_is_equation_3_and_with_an_activation_equation_4(gate, activation, shape, bias, residual, seed):
    count, dim, rank, num_experts = shape
    options = {"gate": gate, "activation": activation, "bias": bias, "residual": residual}
    layer = MixtureCrossLayer(dim, rank=rank, num_experts=num_experts, **options)
    assert (layer.middle is None) == (activation is None)
    assert_rows_follow(layer, eq3_and_4, count, seed)


@examples
@given(shapes(), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_a_vector_layer_is_the_equation_of_dcn(shape, bias, residual, seed):
    count, dim, _, _ = shape
    assert_rows_follow(VectorCrossLayer(dim, bias=bias, residual=residual), dcn_v1, count, seed)


@pytest.mark.parametrize("source", ["x0", "previous"])
@pytest.mark.parametrize("inner", [None, "relu", "tanh"])
@pytest.mark.parametrize("gate", [None, "information"])
@settings(deadline=None, max_examples=15)
@given(
    dim=st.integers(2, 5),
    heads=st.integers(1, 3),
    separable=st.booleans(),
    bias=st.booleans(),
    residual=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_a_general_layer_is_its_formula(source, inner, gate, dim, heads, separable, bias, residual, seed):
    options = {"source": source, "inner": inner, "heads": heads, "gate": gate, "bias": bias, "residual": residual}
    layer = GeneralCrossLayer(dim, **options, context=[1] if separable else None)
    assert_rows_follow(layer, general, 3, seed)


@examples
@given(st.lists(st.booleans(), min_size=2, max_size=6), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_a_separable_layer_is_its_two_lines(sides, bias, residual, seed):
    sides = [*sides[:-1], not sides[0]]  # neither side is empty
    context = [i for i, side in enumerate(sides) if side]
    layer = SeparableCrossLayer(len(sides), context=context, bias=bias, residual=residual)
    assert_rows_follow(layer, separable, 3, seed)


@pytest.mark.parametrize(
    ("options", "equation"),
    [
        ({"layer": "full"}, eq1),
        ({"layer": "low_rank", "rank": 2}, eq2),
        ({"layer": "mixture", "rank": 2, "num_experts": 3, "activation": "tanh"}, eq3_and_4),
        ({"layer": "vector"}, dcn_v1),
        ({"layer": "separable", "context": [0, 3]}, separable),
        ({"layer": "general", "source": "previous", "inner": "tanh", "heads": 2, "gate": "information"}, general),
    ],
)
def test_a_network_feeds_each_layer_the_input_and_the_layer_before(options, equation):
    network, x0 = randomised(CrossNetwork(4, num_layers=3, **options), 5), rows(2, 4, 6)
    for row, out in zip(x0.numpy(), network(x0).detach().numpy(), strict=True):
        xl = row
        for layer in network.layers:
            xl = np.array(equation(layer, row, xl))
        np.testing.assert_allclose(out, xl, **CLOSE)


@examples
@given(st.integers(1, 4), st.lists(st.integers(1, 5), max_size=3), st.integers(1, 4), st.integers(0, 10**6))
def test_a_deep_network_is_one_affine_map_and_one_function_for_each_size(dim, sizes, count, seed):
    network, x = randomised(DeepNetwork(dim, sizes=sizes, activation="tanh"), seed), rows(count, dim, seed + 1)
    out = network(x).detach().numpy()
    assert out.shape == (count, network.output_dim)
    for row, result in zip(x.numpy(), out, strict=True):
        h = list(row)
        for layer in network.layers:
            product, b = times(layer.weight.detach().numpy(), h), layer.bias.tolist()
            h = [math.tanh(product[i] + b[i]) for i in range(len(b))]
        np.testing.assert_allclose(result, h, **CLOSE)


@pytest.mark.parametrize("bias", [True, False])
def test_the_logit_is_one_number_for_each_row(bias):
    layer, x = randomised(OutputLayer(3, bias=bias), 1), rows(2, 3, 2)
    w, b = layer.weight.detach().numpy()[0], layer.bias.item() if bias else 0.0
    expected = [sum(w[i] * row[i] for i in range(3)) + b for row in x.numpy()]
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, **CLOSE)
