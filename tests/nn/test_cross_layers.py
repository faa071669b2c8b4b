"""Shapes, initialisation, switches and errors of the cross layers, and the slips that other libraries made."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from crossrank.errors import ConfigError, ShapeError
from crossrank.nn import CrossLayer, CrossNetwork, LowRankCrossLayer, MixtureCrossLayer, VectorCrossLayer

LAYERS = {
    "full": lambda dim: CrossLayer(dim),
    "low_rank": lambda dim: LowRankCrossLayer(dim, rank=1),
    "mixture": lambda dim: MixtureCrossLayer(dim, rank=1, num_experts=2, activation="tanh"),
    "constant": lambda dim: MixtureCrossLayer(dim, rank=1, num_experts=2, gate="constant"),
    "vector": lambda dim: VectorCrossLayer(dim),
}
X0, XL = torch.tensor([[3.0, 5.0]]), torch.tensor([[7.0, 11.0]])


def full_layer(weight: list[list[float]], bias: list[float]) -> CrossLayer:
    layer = CrossLayer(2)
    layer.weight.data.copy_(torch.tensor(weight))
    layer.bias.data.copy_(torch.tensor(bias))
    return layer


def test_the_bias_is_multiplied_by_the_input():
    assert full_layer([[0, 0], [0, 0]], [1, 2])(X0, XL).tolist() == [[3 * 1 + 7, 5 * 2 + 11]]


def test_the_product_holds_the_layer_before_once():
    assert full_layer([[1, 0], [0, 1]], [0, 0])(X0, XL).tolist() == [[3 * 7 + 7, 5 * 11 + 11]]


def test_a_row_of_the_matrix_belongs_to_an_element_of_the_input():
    assert full_layer([[0, 1], [0, 0]], [0, 0])(X0, XL).tolist() == [[3 * 11 + 7, 11]]


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("shape", [(4,), (0, 4), (1, 4), (7, 4), (2, 3, 4), (2, 0, 3, 4)])
def test_any_leading_shape_goes_through(make, shape):
    layer, x0, xl = make(4), torch.randn(shape), torch.randn(shape)
    out = layer(x0, xl)
    assert out.shape == shape
    one_by_one = [layer(a, b) for a, b in zip(x0.reshape(-1, 4), xl.reshape(-1, 4), strict=True)]
    torch.testing.assert_close(out.reshape(-1, 4), torch.stack(one_by_one) if one_by_one else x0.reshape(-1, 4))


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize(("x0", "xl"), [((7, 1), (7, 4)), ((7, 4), (7, 1)), ((7, 5), (7, 5)), ((), (4,))])
def test_another_width_is_refused_rather_than_broadcast(make, x0, xl):
    with pytest.raises(ShapeError, match=r"must have shape \(\.\.\., 4\); got"):
        make(4)(torch.ones(x0), torch.ones(xl))


@pytest.mark.parametrize("gate", ["softmax", "sigmoid", "constant"])
def test_the_gate_asked_for_is_the_gate_used(gate):
    layer, x = MixtureCrossLayer(4, rank=2, num_experts=3, gate=gate), torch.randn(7, 4)
    scores = x @ layer.gate.weight.T if layer.gate is not None else None
    expected = {
        "softmax": lambda: scores.exp() / scores.exp().sum(dim=1, keepdim=True),
        "sigmoid": lambda: 1 / (1 + (-scores).exp()),
        "constant": lambda: torch.ones(3),
    }[gate]()
    torch.testing.assert_close(layer.gates(x), expected)


def test_only_the_weights_of_the_formula_exist():
    def names(**options: object) -> set[str]:
        return set(MixtureCrossLayer(4, rank=2, num_experts=3, **options).state_dict())

    assert names() == {"up", "down", "bias", "gate.weight"}
    assert names(gate="constant") == {"up", "down", "bias"}
    assert names(activation="relu", bias=False) == {"up", "down", "middle", "gate.weight"}
    assert set(CrossLayer(4, bias=False).state_dict()) == {"weight"}


def test_the_promised_shapes_hold():
    def shapes(layer: torch.nn.Module) -> dict[str, tuple[int, ...]]:
        return {name: tuple(value.shape) for name, value in layer.named_parameters()}

    assert shapes(CrossLayer(4)) == {"weight": (4, 4), "bias": (4,)}
    assert shapes(LowRankCrossLayer(4, rank=2)) == {"up": (4, 2), "down": (2, 4), "bias": (4,)}
    mixture = {"up": (3, 4, 2), "down": (3, 2, 4), "middle": (3, 2, 2), "bias": (4,), "gate.weight": (3, 4)}
    assert shapes(MixtureCrossLayer(4, rank=2, num_experts=3, activation="tanh")) == mixture
    assert shapes(VectorCrossLayer(4)) == {"weight": (4,), "bias": (4,)}


def test_each_layer_of_a_network_has_its_own_gate():
    first, second = CrossNetwork(4, num_layers=2, layer="mixture", rank=2, num_experts=3).layers
    assert first.gate is not second.gate
    assert not torch.equal(first.gate.weight, second.gate.weight)


def assert_he_normal(matrix: Tensor) -> None:
    fan_in = matrix.shape[-1]
    assert math.isclose(matrix.std().item(), math.sqrt(2 / fan_in), rel_tol=0.08)
    assert abs(matrix.mean().item()) < 5 * math.sqrt(2 / fan_in / matrix.numel())


def test_every_matrix_starts_with_the_spread_of_its_own_fan_in():
    torch.manual_seed(0)
    mixture = MixtureCrossLayer(256, rank=64, num_experts=4, activation="relu")
    low = LowRankCrossLayer(256, rank=64)
    stacks = (mixture.up, mixture.down, mixture.middle)
    experts = [matrix for stack in stacks for matrix in stack]
    for matrix in [*experts, mixture.gate.weight, low.up, low.down, CrossLayer(128).weight]:
        assert_he_normal(matrix)
    assert_he_normal(VectorCrossLayer(4096).weight)


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_reset_draws_every_kernel_anew_and_zeroes_the_bias(make):
    layer = make(4)
    before = {name: value.clone() for name, value in layer.named_parameters()}
    torch.nn.init.ones_(layer.bias)
    layer.reset_parameters()
    for name, value in layer.named_parameters():
        assert torch.equal(value, before[name]) == (name == "bias")
    assert not layer.bias.any()


def test_a_module_as_activation_is_trained_with_the_layer():
    layer = MixtureCrossLayer(4, rank=2, num_experts=3, activation=torch.nn.PReLU())
    assert "activation.weight" in layer.state_dict()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: LowRankCrossLayer(64, rank=96),
            "rank must be between 1 and 64, the input width; got rank=96. "
            "Try rank=16 (a quarter of the input), or leave rank out for the full matrix.",
        ),
        (lambda: LowRankCrossLayer(3, rank=0), "rank must be between 1 and 3, the input width; got rank=0. Try rank=1"),
        (lambda: MixtureCrossLayer(4, rank=5, num_experts=1), "rank must be between 1 and 4"),
        (lambda: MixtureCrossLayer(4, rank=1, num_experts=0), "num_experts must be at least 1; got num_experts=0."),
        (lambda: MixtureCrossLayer(4, rank=1, num_experts=1, gate="sofmax"), "Did you mean 'softmax'?"),
        (lambda: MixtureCrossLayer(4, rank=1, num_experts=1, activation="tahn"), "Did you mean 'tanh'?"),
        (lambda: CrossLayer(0), "input_dim must be at least 1; got input_dim=0."),
        (lambda: CrossNetwork(4, num_layers=0), "num_layers must be at least 1; got num_layers=0."),
        (lambda: CrossNetwork(4, num_layers=1, layer="lowrank"), "got 'lowrank'. Did you mean 'low_rank'?"),
        (lambda: CrossNetwork(4, num_layers=1, rank=2), "A 'full' cross layer takes 'bias', 'residual'; got an unexpe"),
        (lambda: CrossNetwork(4, num_layers=1, layer="low_rank"), "missing a required argument: 'rank'."),
    ],
)
def test_a_wrong_setting_is_refused_with_a_way_out(make, message):
    with pytest.raises(ConfigError) as error:
        make()
    assert message in str(error.value)


@pytest.mark.parametrize(("activation", "name"), [("tanh", "tanh"), (torch.tanh, "tanh"), (torch.nn.Tanh(), "Tanh")])
def test_the_repr_tells_the_options(activation, name):
    text = repr(MixtureCrossLayer(4, rank=2, num_experts=3, activation=activation))
    assert f"rank=2, num_experts=3, gate=softmax, activation={name}" in text


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda bias: CrossLayer(4, bias=bias),
        lambda bias: LowRankCrossLayer(4, rank=2, bias=bias),
        lambda bias: MixtureCrossLayer(4, rank=2, num_experts=3, activation="tanh", bias=bias),
        lambda bias: MixtureCrossLayer(4, rank=2, num_experts=3, gate="constant", bias=bias),
    ],
    ids=["full", "low_rank", "mixture", "constant"],
)
def test_what_a_layer_projects_mixes_and_spreads_is_what_it_multiplies(make, bias):
    layer = make(bias).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x0, xl = torch.randn(2, 7, 4).double()
    torch.testing.assert_close(layer(x0, xl) - xl, x0 * layer.spread(layer.mix(layer.project(xl))))


@pytest.mark.parametrize("layer", [CrossLayer(6), LowRankCrossLayer(6, rank=2)])
def test_under_autocast_a_layer_is_still_its_formula_in_float32(layer) -> None:
    x0, xl = torch.randn(5, 6, requires_grad=True), torch.randn(5, 6, requires_grad=True)
    found = []
    with torch.autocast("cpu", torch.bfloat16):
        product = (
            layer.spread(layer.project(xl)) if layer.label == "low-rank" else F.linear(xl, layer.weight, layer.bias)
        )
        for out in (layer(x0, xl), x0 * product + xl):
            found.append([out, *torch.autograd.grad(out.sum(), (x0, xl))])
    assert product.dtype == torch.bfloat16 and found[0][0].dtype == torch.float32
    assert all(torch.equal(left, right) for left, right in zip(*found, strict=True))
