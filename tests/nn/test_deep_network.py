from __future__ import annotations

import math

import pytest
import torch

from crossrank.errors import ConfigError, ShapeError
from crossrank.nn import ACTIVATIONS, DeepNetwork, Linear, resolve_activation


def test_kernels_are_he_normal_and_biases_zero():
    torch.manual_seed(0)
    for layer in DeepNetwork(256, sizes=[64, 512]).layers:
        assert math.isclose(layer.weight.std().item(), math.sqrt(2 / layer.in_features), rel_tol=0.05)
        assert not layer.bias.any()


def test_dropout_acts_on_each_layer_while_training_only():
    network, x = DeepNetwork(4, sizes=[1000], activation="sigmoid", dropout=0.25), torch.randn(3, 4)
    kept = network.eval()(x)
    dropped = network.train()(x)
    zero = dropped == 0
    assert abs(zero.float().mean().item() - 0.25) < 0.05
    torch.testing.assert_close(dropped[~zero], kept[~zero] / 0.75)


def test_a_linear_layer_may_go_without_bias():
    assert set(Linear(3, 2, bias=False).state_dict()) == {"weight"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("identity", lambda v: v),
        ("relu", lambda v: max(v, 0.0)),
        ("leaky_relu", lambda v: v if v > 0 else 0.01 * v),
        ("elu", lambda v: v if v > 0 else math.exp(v) - 1),
        ("gelu", lambda v: v * 0.5 * (1 + math.erf(v / math.sqrt(2)))),
        ("silu", lambda v: v / (1 + math.exp(-v))),
        ("softplus", lambda v: math.log1p(math.exp(v))),
        ("sigmoid", lambda v: 1 / (1 + math.exp(-v))),
        ("tanh", math.tanh),
        ("hard_tanh", lambda v: min(max(v, -1.0), 1.0)),
    ],
)
def test_each_activation_is_the_function_of_its_name(name, expected):
    values = [-3.0, -0.4, 0.0, 0.7, 2.0]
    result = resolve_activation(name)(torch.tensor(values, dtype=torch.float64))
    assert result.tolist() == pytest.approx([expected(v) for v in values], abs=1e-12)


def test_no_activation_is_left_untested():
    cases = test_each_activation_is_the_function_of_its_name.pytestmark[0].args[1]
    assert {name for name, _ in cases} == set(ACTIVATIONS)


def test_a_callable_is_its_own_activation_and_none_is_the_identity():
    assert resolve_activation(torch.sin) is torch.sin
    assert resolve_activation(None) is ACTIVATIONS["identity"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: resolve_activation("sigmoit"), "got 'sigmoit'. Did you mean 'sigmoid'?"),
        (lambda: DeepNetwork(4, sizes=[8, 0]), "sizes[1] must be at least 1"),
        (lambda: DeepNetwork(0, sizes=[8]), "input_dim must be at least 1"),
        (lambda: DeepNetwork(4, sizes=[8], dropout=1.0), "dropout must be at least 0 and below 1; got dropout=1.0."),
        (lambda: DeepNetwork(4, sizes=[8], dropout=-0.1), "dropout must be at least 0 and below 1"),
    ],
)
def test_a_wrong_setting_of_the_deep_network_is_refused(make, message):
    with pytest.raises(ConfigError) as error:
        make()
    assert message in str(error.value)


def test_a_deep_network_refuses_another_width():
    with pytest.raises(ShapeError, match=r"x must have shape \(\.\.\., 4\); got \(2, 5\)"):
        DeepNetwork(4, sizes=[])(torch.zeros(2, 5))
