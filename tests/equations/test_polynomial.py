"""A cross network is a polynomial: its degree, and both theorems about it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from crossrank.nn import CrossNetwork
from crossrank.nn.polynomial import feature_interaction, polynomial_coefficients, theorem_coefficient


def network_of(dim: int, num_layers: int, seed: int, *, bias: bool = False, **options: object) -> CrossNetwork:
    network = CrossNetwork(dim, num_layers=num_layers, bias=bias, **options).double()
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        nn.init.normal_(parameter, generator=generator)
    return network


def weights_of(network: CrossNetwork) -> list[Tensor]:
    return [layer.weight.detach() for layer in network.layers]


def highest_and_beyond(network: CrossNetwork, degree: int) -> tuple[Tensor, Tensor]:
    """How far the values along a line are from a polynomial of lower degree, and from one of this, of their size."""
    generator = torch.Generator().manual_seed(2)
    start, direction = torch.randn(2, 4, dtype=torch.float64, generator=generator)
    steps = torch.arange(degree + 2, dtype=torch.float64)[:, None] / degree
    values = network(start + steps * direction).detach()
    return tuple(torch.diff(values, n=n, dim=0).abs().max() / values.abs().max() for n in (degree, degree + 1))


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_with_the_previous_x_as_source_the_degree_doubles_with_each_layer(num_layers):
    network = network_of(4, num_layers, 1, bias=True, layer="general", source="previous", heads=2)
    highest, beyond = highest_and_beyond(network, 2**num_layers)
    assert beyond < 1e-11
    assert highest > 1e-6


@pytest.mark.parametrize("switch", [{"gate": "information"}, {"inner": "tanh"}, {"inner": "relu"}])
def test_with_a_gate_or_an_activation_inside_it_is_no_polynomial_of_that_degree(switch):
    _, beyond = highest_and_beyond(network_of(4, 2, 1, bias=True, layer="general", **switch), 3)
    assert beyond > 1e-6


@pytest.mark.parametrize("num_layers", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "options",
    [
        {"layer": "full"},
        {"layer": "low_rank", "rank": 2},
        {"layer": "mixture", "rank": 2, "num_experts": 3, "gate": "constant"},
        {"layer": "vector"},
    ],
)
def test_along_any_line_the_degree_is_the_number_of_layers_plus_one(num_layers, options):
    network, generator = network_of(4, num_layers, 1, bias=True, **options), torch.Generator().manual_seed(2)
    start, direction = torch.randn(2, 4, dtype=torch.float64, generator=generator)
    steps = torch.arange(num_layers + 3, dtype=torch.float64)[:, None]
    values = network(start + steps * direction).detach()
    degree = num_layers + 1
    highest, beyond = (torch.diff(values, n=order, dim=0).abs().max() for order in (degree, degree + 1))
    assert beyond < 1e-11 * values.abs().max()
    assert highest > 1e-3 * values.abs().max()


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 10**6))
def test_theorem_1_gives_the_coefficients_that_multiplying_out_gives(dim, num_layers, seed):
    network = network_of(dim, num_layers, seed)
    expanded = polynomial_coefficients(weights_of(network))
    possible = {alpha for alpha in itertools.product(range(num_layers + 2), repeat=dim) if sum(alpha) <= num_layers + 1}
    assert set(expanded) == {alpha for alpha in possible if sum(alpha) > 0}
    for alpha in possible:
        closed = theorem_coefficient(weights_of(network), alpha)
        assert math.isclose(closed, expanded.get(alpha, 0.0), rel_tol=1e-9, abs_tol=1e-9), alpha


@pytest.mark.parametrize("source", ["x0", "previous"])
@settings(deadline=None, max_examples=25)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 10**6))
def test_the_coefficients_reproduce_the_network(source, dim, num_layers, seed):
    network = network_of(dim, num_layers, seed, layer="general", source=source)
    x = torch.randn(3, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    coefficients = polynomial_coefficients([weight[0] for weight in weights_of(network)], source=source)
    degree = num_layers + 1 if source == "x0" else 2**num_layers
    assert set(map(sum, coefficients)) == set(range(1, degree + 1))
    polynomial = [
        sum(c * math.prod(v**power for v, power in zip(row, alpha, strict=True)) for alpha, c in coefficients.items())
        for row in x.tolist()
    ]
    np.testing.assert_allclose(network(x).sum(dim=1).detach(), polynomial, rtol=1e-8, atol=1e-8)


def crosses_by_interpolation(network: CrossNetwork, x: Tensor, widths: list[int]) -> dict[tuple[int, ...], np.ndarray]:
    """The part of the output of each degree in each feature, from the outputs where the features are scaled.

    With feature i scaled by t_i the output is a polynomial in t whose coefficients are the interactions.
    """
    nodes = np.arange(1.0, len(network.layers) + 3)
    grid = list(itertools.product(nodes, repeat=len(widths)))
    scales = torch.tensor(grid).repeat_interleave(torch.tensor(widths), dim=1)
    values = network(scales * x).detach().numpy().reshape(*[len(nodes)] * len(widths), -1)
    inverse = np.linalg.inv(np.vander(nodes, increasing=True))
    for axis in range(len(widths)):
        values = np.moveaxis(np.tensordot(inverse, values, axes=(1, axis)), 0, axis)
    return {alpha: values[alpha] for alpha in itertools.product(range(len(nodes)), repeat=len(widths))}


@pytest.mark.parametrize(("widths", "num_layers"), [([2, 3], 1), ([2, 3], 2), ([1, 2, 1], 2), ([3, 1], 3)])
def test_theorem_2_gives_every_interaction_of_features(widths, num_layers):
    dim = sum(widths)
    network = network_of(dim, num_layers, 3)
    x = torch.randn(dim, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    for alpha, expected in crosses_by_interpolation(network, x, widths).items():
        features = [i for i, count in enumerate(alpha) for _ in range(count)]
        interaction = feature_interaction(x, weights_of(network), widths, features)
        np.testing.assert_allclose(interaction, expected, atol=1e-7, err_msg=str(alpha))


def test_theorem_2_with_widths_of_one_is_theorem_1():
    network = network_of(3, 2, 5)
    x = torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    total = feature_interaction(x, weights_of(network), [1, 1, 1], [0, 0, 2]).sum().item()
    coefficient = theorem_coefficient(weights_of(network), (2, 0, 1))
    assert math.isclose(total, coefficient * x[0].item() ** 2 * x[2].item(), rel_tol=1e-12)
