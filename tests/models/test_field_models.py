"""FM, DeepFM, PNN, DLRM, CIN and xDeepFM against their published formulas, written out row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_models import make_features, random_model, random_rows
from references.cin import cin, xdeepfm
from references.dlrm import dlrm
from references.fm import deepfm, fm
from references.pnn import pnn

from crossrank.errors import ConfigError, ShapeError
from crossrank.models import build_model, parse_model_settings
from crossrank.nn import CompressedInteractionNetwork, InnerProducts, OuterProducts

DEEP = {"deep": {"sizes": [5, 3]}}
CASES = [
    (fm, {"name": "fm"}, {}),
    (deepfm, {"name": "deepfm", **DEEP}, {}),
    *[
        (pnn, {"name": "pnn", **options, **DEEP}, {"kernel": "matrix", **options})
        for options in [
            {"product": "inner"},
            {"product": "outer", "kernel": "matrix"},
            {"product": "outer", "kernel": "vector"},
            {"product": "outer", "kernel": "number"},
            {"product": "both", "kernel": "vector"},
        ]
    ],
    (pnn, {"name": "pnn", "deep": {"sizes": []}}, {"product": "outer", "kernel": "matrix"}),
    (dlrm, {"name": "dlrm", "bottom_sizes": [4, 3], **DEEP}, {"with_itself": False}),
    (dlrm, {"name": "dlrm", "bottom_sizes": [], "with_itself": True, **DEEP}, {"with_itself": True}),
    *[
        (reference, {"name": name, "cin": {"sizes": sizes, **options}, **extra}, options)
        for reference, name, extra in [(cin, "cin", {}), (xdeepfm, "xdeepfm", DEEP)]
        for sizes, options in [
            ([3], {"split_half": False, "activation": "identity"}),
            ([4, 3, 2], {"split_half": False, "activation": "relu"}),
            ([4, 2, 3], {"split_half": True, "activation": "identity"}),
        ]
    ],
]
IDS = [
    "-".join(map(str, [config["name"], *options.values()])) + f"-{i}" for i, (_, config, options) in enumerate(CASES)
]


@pytest.mark.parametrize(("reference", "config", "options"), CASES, ids=IDS)
@settings(deadline=None, max_examples=12)
@given(
    counts=st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 2)),
    width=st.integers(1, 4),
    num_rows=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_logits_are_the_published_formula(reference, config, options, counts, width, num_rows, seed):
    assume(config["name"] != "dlrm" or sum(counts) > 1 or options["with_itself"])
    torch.manual_seed(seed)
    features = make_features(*counts)
    model, rows = random_model(config, features, width=width), random_rows(features, num_rows)
    weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    x0 = model.embedding(rows).detach().numpy()
    values = model.linear.embedding(rows).detach().numpy() if hasattr(model, "linear") else x0
    expected = [
        reference(x, value, weights, num_embedded=counts[0] + counts[1], width=width, **options)
        for x, value in zip(x0, values, strict=True)
    ]
    np.testing.assert_allclose(model(rows).detach().numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("reference", "config", "options"), CASES, ids=IDS)
def test_gradients_are_right(reference, config, options):
    torch.manual_seed(0)
    # ReLU has a corner, where a numerical gradient is none.
    smooth = {**config, **({"deep": {**config["deep"], "activation": "tanh"}} if "deep" in config else {})}
    if "cin" in config:
        smooth["cin"] = {**config["cin"], "activation": "tanh"}
    features = make_features(2, 1, 1)
    model, rows = random_model(smooth, features, width=2), random_rows(features, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    x0 = model.embedding(rows).detach().requires_grad_()
    assert torch.autograd.gradcheck(model.logits, x0)
    assert torch.autograd.gradcheck(lambda *_: model(rows), tuple(model.parameters()))


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
