"""The layers of DLRM, PNN and CIN: what they refuse, and how they start."""

from __future__ import annotations

import pytest
import torch
from random_models import make_features

from crossrank.errors import ConfigError, ShapeError
from crossrank.models import build_model, parse_model_settings
from crossrank.nn import CompressedInteractionNetwork, InnerProducts, OuterProducts


def test_dlrm_refuses_a_single_field_with_a_way_out():
    with pytest.raises(ConfigError, match="needs two; got 'c0' alone") as caught:
        build_model(parse_model_settings({"name": "dlrm"}), make_features(1, 0, 0))
    assert "with_itself" in caught.value.hint


def test_dlrm_without_numbers_reads_products_alone():
    model = build_model(parse_model_settings({"name": "dlrm"}), make_features(3, 0, 0))
    assert model.bottom is None
    assert model.deep.input_dim == 3


@pytest.mark.parametrize("sizes", [[], [0], [3, 0]])
def test_cin_refuses_sizes_that_are_none(sizes):
    with pytest.raises(ConfigError, match="at least 1"):
        CompressedInteractionNetwork(3, sizes=sizes)


def test_cin_halves_even_sizes_only_but_the_last_may_be_odd():
    assert CompressedInteractionNetwork(3, sizes=[4, 3], split_half=True).output_dim == 5
    with pytest.raises(ConfigError, match=r"must be even; got \[3, 4\]"):
        CompressedInteractionNetwork(3, sizes=[3, 4], split_half=True)


@pytest.mark.parametrize(
    "layer", [InnerProducts(3), OuterProducts(3, width=2), CompressedInteractionNetwork(3, sizes=[2])]
)
@pytest.mark.parametrize("shape", [(5, 4, 2), (5, 2, 2), (3, 2)])
def test_layers_of_pairs_refuse_another_number_of_fields(layer, shape):
    with pytest.raises(ShapeError, match=r"fields must have shape \(B, 3, "):
        layer(torch.zeros(shape))


def test_outer_products_refuse_fields_that_would_broadcast():
    with pytest.raises(ShapeError, match=r"\(B, 3, 2\); got \(5, 3, 1\)"):
        OuterProducts(3, width=2, kernel="vector")(torch.zeros(5, 3, 1))


def test_an_unknown_kernel_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'matrix'"):
        OuterProducts(3, width=2, kernel="matrx")


@pytest.mark.parametrize(("kernel", "fan_in"), [("matrix", 50), ("vector", 50), ("number", 1)])
def test_each_pairs_kernel_is_he_normal_on_its_own(kernel, fan_in):
    torch.manual_seed(0)
    weight = OuterProducts(40, width=50, kernel=kernel).weight
    assert weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.1)


def test_feature_maps_are_he_normal():
    torch.manual_seed(0)
    network = CompressedInteractionNetwork(10, sizes=[60, 50], split_half=True)
    for layer, fan_in in zip(network.layers, [10 * 10, 30 * 10], strict=True):
        assert layer.weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.1)
