"""What each layer becomes in its special cases."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from crossrank.nn import (
    CrossLayer,
    CrossNetwork,
    DeepNetwork,
    GeneralCrossLayer,
    LowRankCrossLayer,
    MixtureCrossLayer,
    SeparableCrossLayer,
    VectorCrossLayer,
)

DIM, RANK = 6, 3


@pytest.fixture(autouse=True)
def _double_precision():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def x0() -> Tensor:
    return torch.randn(7, DIM)


@pytest.fixture
def xl() -> Tensor:
    return torch.randn(7, DIM)


def set_parameters(module: nn.Module, **values: Tensor) -> None:
    for name, value in values.items():
        getattr(module, name).data.copy_(value)


def test_equal_rows_of_the_matrix_and_no_bias_make_the_layer_of_dcn(x0, xl):
    full, vector = CrossLayer(DIM), VectorCrossLayer(DIM)
    set_parameters(full, weight=vector.weight.expand(DIM, DIM))
    assert_close(full(x0, xl), vector(x0, xl))


def test_a_bias_tells_dcn_v2_from_dcn(x0, xl):
    full, vector, bias = CrossLayer(DIM), VectorCrossLayer(DIM), torch.randn(DIM)
    set_parameters(full, weight=vector.weight.expand(DIM, DIM), bias=bias)
    set_parameters(vector, bias=bias)
    assert_close(full(x0, xl) - vector(x0, xl), (x0 - 1) * bias)


def test_a_full_rank_product_is_any_matrix(x0, xl):
    full, low = CrossLayer(DIM), LowRankCrossLayer(DIM, rank=DIM)
    u, s, vt = torch.linalg.svd(full.weight)
    bias = torch.randn(DIM)
    set_parameters(full, bias=bias)
    set_parameters(low, up=u * s, down=vt, bias=bias)
    assert_close(low(x0, xl), full(x0, xl))


@pytest.mark.parametrize("gate", ["constant", "softmax"])
def test_one_expert_of_weight_one_is_the_low_rank_layer(x0, xl, gate):
    low, mixture = LowRankCrossLayer(DIM, rank=RANK), MixtureCrossLayer(DIM, rank=RANK, num_experts=1, gate=gate)
    set_parameters(low, bias=torch.randn(DIM))
    set_parameters(mixture, up=low.up[None], down=low.down[None], bias=low.bias)
    assert_close(mixture(x0, xl), low(x0, xl))


def test_constant_gates_are_one_low_rank_layer_of_all_the_experts_ranks(x0, xl):
    low = LowRankCrossLayer(DIM, rank=2 * RANK, bias=False)
    mixture = MixtureCrossLayer(DIM, rank=RANK, num_experts=2, gate="constant", bias=False)
    set_parameters(mixture, up=torch.stack(low.up.split(RANK, dim=1)), down=torch.stack(low.down.split(RANK)))
    assert_close(mixture(x0, xl), low(x0, xl))


@pytest.mark.parametrize(("gate", "times"), [("constant", 3.0), ("softmax", 1.0)])
def test_the_bias_counts_as_often_as_the_gates_sum_to(x0, xl, gate, times):
    layer = MixtureCrossLayer(DIM, rank=RANK, num_experts=3, gate=gate)
    without, bias = layer(x0, xl), torch.randn(DIM)
    set_parameters(layer, bias=bias)
    assert_close(layer(x0, xl) - without, times * x0 * bias)


def test_an_identity_activation_with_identity_middles_is_equation_3(x0, xl):
    third = MixtureCrossLayer(DIM, rank=RANK, num_experts=2)
    fourth = MixtureCrossLayer(DIM, rank=RANK, num_experts=2, activation="identity")
    set_parameters(fourth, up=third.up, down=third.down, middle=torch.eye(RANK).expand(2, RANK, RANK))
    set_parameters(fourth.gate, weight=third.gate.weight)
    assert_close(fourth(x0, xl), third(x0, xl))


def test_a_general_layer_without_a_switch_is_the_full_layer(x0, xl):
    full, general, bias = CrossLayer(DIM), GeneralCrossLayer(DIM), torch.randn(DIM)
    set_parameters(full, bias=bias)
    set_parameters(general, weight=full.weight[None], bias=bias[None])
    assert_close(general(x0, xl), full(x0, xl))


def test_a_general_layer_with_nothing_but_a_context_is_the_separable_layer(x0, xl):
    separable, general = SeparableCrossLayer(DIM, context=[0, 4]), GeneralCrossLayer(DIM, context=[0, 4])
    set_parameters(separable, weight=torch.randn(DIM, DIM))
    set_parameters(general, weight=separable.weight[None])
    assert_close(general(x0, xl), separable(x0, xl))


@pytest.mark.parametrize("options", [{}, {"inner": "relu"}, {"gate": "information"}, {"source": "previous"}])
def test_equal_heads_are_one_head(x0, xl, options):
    one, three = GeneralCrossLayer(DIM, **options), GeneralCrossLayer(DIM, heads=3, **options)
    set_parameters(one, bias=torch.randn(1, DIM))
    set_parameters(three, weight=one.weight.expand(3, -1, -1), bias=one.bias.expand(3, -1))
    if one.gate is not None:
        set_parameters(three.gate, weight=one.gate.weight.repeat(3, 1))
    assert_close(three(x0, xl), one(x0, xl))


def test_heads_without_activation_and_gate_are_the_mean_of_their_matrices(x0, xl):
    full, general = CrossLayer(DIM), GeneralCrossLayer(DIM, heads=4)
    set_parameters(full, weight=general.weight.mean(dim=0))
    assert_close(general(x0, xl), full(x0, xl))
    assert_close(general.matrix(xl), full.weight)


def test_a_gate_of_zeros_lets_half_of_each_cross_pass(x0, xl):
    full, gated = CrossLayer(DIM), GeneralCrossLayer(DIM, gate="information")
    set_parameters(gated, weight=full.weight[None])
    set_parameters(gated.gate, weight=torch.zeros(DIM, DIM))
    assert_close(gated(x0, xl) - xl, (full(x0, xl) - xl) / 2)
    assert_close(gated.matrix(xl), full.weight / 2)


def test_in_the_first_layer_both_sources_are_one(x0):
    one, other = GeneralCrossLayer(DIM), GeneralCrossLayer(DIM, source="previous")
    set_parameters(other, weight=one.weight)
    assert_close(one(x0, x0), other(x0, x0))


def test_a_network_of_zero_kernels_is_the_identity(x0):
    network = CrossNetwork(DIM, num_layers=3)
    for layer in network.layers:
        set_parameters(layer, weight=torch.zeros(DIM, DIM))
    assert torch.equal(network(x0), x0)


def test_a_deep_network_without_sizes_is_the_identity(x0):
    network = DeepNetwork(DIM, sizes=[])
    assert torch.equal(network(x0), x0)
    assert network.output_dim == DIM
