"""FinalMLP and the models after it: limits of their layers, what they refuse, and how they start."""

from __future__ import annotations

import pytest
import torch
from random_models import make_features, random_model, random_rows

from crossrank.errors import ConfigError, ShapeError
from crossrank.models import build_model, parse_model_settings
from crossrank.nn import (
    BilinearFusion,
    CrossLayer,
    FactorizationBlock,
    FactorizedLayer,
    FactorizedNetwork,
    FeatureGate,
    FieldGate,
    Linear,
    MaskBlock,
    MaskedCrossLayer,
    QuadraticCrossLayer,
    WukongLayer,
)


def test_final_mlp_without_its_second_stream_is_a_deep_network():
    features, deep = make_features(2, 1, 1), {"deep": {"sizes": [5, 3]}}
    model = random_model({"name": "final-mlp", **deep, "second": {"sizes": [4]}}, features, width=2)
    plain, rows = random_model({"name": "dnn", **deep}, features, width=2), random_rows(features, 7)
    with torch.no_grad():
        for kernel in (model.fusion.weight, model.gates[0].bias, model.output.weight[:, 3:]):
            kernel.zero_()
        state = {name.replace("deep.0.", "deep."): value for name, value in model.state_dict().items()}
        state["output.weight"] = model.output.weight[:, :3]
        plain.load_state_dict({name: state[name] for name in plain.state_dict()})
    torch.testing.assert_close(model(rows), plain(rows))


def test_gates_lie_between_zero_and_two_and_start_at_one_without_a_context():
    x0 = torch.rand(7, 4) + 0.5
    assert torch.equal(FeatureGate(4)(x0), x0)
    shares = FeatureGate(4, context=[1, 2], sizes=[3])(x0) / x0
    assert shares.min() > 0 and shares.max() < 2


def test_gates_look_at_their_context_alone():
    gate, x0 = FeatureGate(4, context=[1, 2], sizes=[3]), torch.rand(7, 4) + 0.5
    other = x0.clone()
    other[:, [0, 3]] *= 2
    torch.testing.assert_close(gate(other)[:, 1:3], gate(x0)[:, 1:3])


def test_a_context_must_be_columns_of_the_schema():
    with pytest.raises(ConfigError, match=r"model\.second_context must be columns among .*; got 'c9'"):
        build_model(parse_model_settings({"name": "final-mlp", "second_context": ["c9"]}), make_features(2, 0, 0))


def test_heads_must_divide_both_streams():
    with pytest.raises(ConfigError, match="num_heads must divide both widths, 4 and 6; got num_heads=4"):
        BilinearFusion(4, 6, num_heads=4)


def test_a_fusion_starts_as_one_number_of_all_its_products():
    torch.manual_seed(0)
    assert BilinearFusion(60, 40, num_heads=2).weight.std().item() == pytest.approx((2 / 1200) ** 0.5, rel=0.1)


def test_a_factorised_layer_without_its_second_half_is_a_dense_layer():
    layer, dense, x = FactorizedLayer(4, 3), Linear(4, 3), torch.randn(7, 4)
    with torch.no_grad():
        layer.linear.weight[3:] = 0
        dense.weight.copy_(layer.linear.weight[:3])
    torch.testing.assert_close(layer(x), dense(x))
    assert FactorizedNetwork(4, sizes=[])(x) is x


def test_a_mask_of_ones_leaves_a_normalised_dense_layer():
    block, x0, h = MaskBlock(4, 3, 5, mask_dim=2), torch.randn(7, 4), torch.randn(7, 3)
    with torch.no_grad():
        block.outer.weight.zero_()
        block.outer.bias.fill_(1)
    torch.testing.assert_close(block(x0, h), block.norm(block.linear(h)).relu())


def test_one_block_stands_the_same_serial_and_parallel():
    features, deep = make_features(2, 0, 1), {"deep": {"sizes": []}, "mask": {"sizes": [4]}}
    serial, parallel = (
        random_model({"name": "mask-net", "structure": structure, **deep}, features, width=2)
        for structure in ("serial", "parallel")
    )
    parallel.load_state_dict(serial.state_dict())
    rows = random_rows(features, 7)
    torch.testing.assert_close(serial(rows), parallel(rows))


def test_a_mask_of_ones_makes_a_cross_layer_with_each_row_twice():
    layer, full, x0, xl = MaskedCrossLayer(4), CrossLayer(4), torch.randn(7, 4), torch.randn(7, 4)
    with torch.no_grad():
        layer.norm.weight.zero_()
        layer.norm.bias.fill_(1)
        layer.bias.normal_()
        full.weight.copy_(torch.cat([layer.weight, layer.weight]))
        full.bias.copy_(layer.bias)
    torch.testing.assert_close(layer(x0, xl), full(x0, xl))


def test_the_views_of_a_feature_are_its_halves_and_a_number_has_the_first_alone():
    layer = MaskedCrossLayer(8, widths=[4, 3, 1])
    assert layer.weight.shape == (5, 8)
    assert layer.places.tolist() == [0, 1, 5, 6, 2, 3, 7, 4]  # below 5: H, in order; from 5 on: the masked H


def test_the_matrix_of_a_row_is_what_its_mask_leaves():
    x0, xl = torch.randn(1, 8).double(), torch.randn(1, 8).double()
    layer = MaskedCrossLayer(8, widths=[4, 4]).double()
    torch.testing.assert_close(x0 * (xl @ layer.matrix(xl).T) + xl, layer(x0, xl))
    quadratic = QuadraticCrossLayer(8, num_heads=3).double()  # whose shift starts at zero
    torch.testing.assert_close(xl * (xl @ quadratic.matrix(xl).T) + xl, quadratic(x0, xl))
    several = torch.randn(5, 8).double()
    for one in (layer, quadratic):
        mean = torch.stack([one.matrix(several[i : i + 1]) for i in range(5)]).mean(dim=0)
        torch.testing.assert_close(one.matrix(several), mean)


def test_one_layer_of_ecn_is_one_of_lcn():
    features, cross = make_features(2, 0, 1), {"cross": {"num_layers": 1}}
    exponential, linear = (random_model({"name": name, **cross}, features, width=3) for name in ("ecn", "lcn"))
    linear.load_state_dict(exponential.state_dict())
    rows = random_rows(features, 7)
    torch.testing.assert_close(exponential(rows), linear(rows))


def test_the_degree_of_exponential_crosses_doubles_with_each_layer():
    """With a mask of ones a network is a polynomial: its differences of order degree + 1 along a line vanish."""
    features = make_features(3, 0, 0)
    for name, degree in [("ecn", 8), ("lcn", 4)]:
        model = random_model({"name": name, "cross": {"num_layers": 3}}, features, width=2)
        with torch.no_grad():
            for layer in model.cross.layers:
                layer.norm.weight.zero_()
                layer.norm.bias.fill_(1)
                layer.weight.mul_(0.3)
        line = torch.linspace(-1, 1, degree + 2, dtype=torch.float64)[:, None] * torch.randn(6, dtype=torch.float64)
        values = model.logits(line)
        highest = values.diff(n=degree).abs().max()
        assert values.diff(n=degree + 1).abs().max() < 1e-9 * values.abs().max()
        assert highest > 1e-6 * values.abs().max()


def test_quadratic_crosses_without_a_norm_are_the_identity():
    layer, x0, xl = QuadraticCrossLayer(4, num_heads=2), torch.randn(7, 4), torch.randn(7, 4)
    torch.nn.init.zeros_(layer.norm.weight)
    torch.testing.assert_close(layer(x0, xl), xl)


@pytest.mark.parametrize(("dropout", "paths"), [(0.0, 1), (0.3, 2)])
def test_qnn_alpha_has_two_paths_where_it_drops(dropout, paths):
    features = make_features(2, 0, 0)
    model = random_model({"name": "qnn-alpha", "cross": {"num_layers": 2, "dropout": dropout}}, features, width=2)
    rows = random_rows(features, 50)
    heads = model.train().heads(rows)
    assert heads.shape == (50, paths)
    assert paths == 1 or not torch.equal(heads[:, 0], heads[:, 1])
    assert all(torch.equal(head, model(rows)) for head in model.eval().heads(rows).unbind(1))


@pytest.mark.parametrize("temperature", [0.01, 1.0, 100.0])
def test_a_low_temperature_lets_one_field_pass_and_a_high_one_all(temperature):
    gate, x = FieldGate(3, width=4, temperature=temperature), torch.randn(5, 12)
    with torch.no_grad():
        gate.gate.copy_(torch.tensor([1.0, 0.0, 0.5]))
    shares = 3 * torch.tensor([1.0, 0.0, 0.5]).div(temperature).softmax(dim=0)
    torch.testing.assert_close(gate(x), gate.norm(shares.repeat_interleave(4) * x))
    assert {0.01: shares.max() > 2.99, 1.0: True, 100.0: (shares - 1).abs().max() < 0.02}[temperature]


def test_equal_gates_are_the_norm_alone():
    gate, x = FieldGate(3, width=4), torch.randn(5, 12)
    torch.testing.assert_close(gate(x), gate.norm(x))


def test_a_factorization_block_with_a_unit_matrix_reads_all_inner_products():
    block, fields = FactorizationBlock(3, width=4, num_outputs=2, rank=3, sizes=[]), torch.randn(7, 3, 4)
    torch.nn.init.eye_(block.projection.weight)
    products = torch.stack([fields[:, i].mul(fields[:, j]).sum(1) for i in range(3) for j in range(3)], dim=1)
    torch.testing.assert_close(block(fields), block.last(block.norm(products)).view(7, 2, 4))


def test_a_wukong_layer_of_zeros_is_the_norm():
    layer, fields = WukongLayer(3, width=4, num_fm=2, num_linear=1, rank=2, sizes=[]), torch.randn(7, 3, 4)
    assert layer.skip is None
    for kernel in (layer.fm.last.weight, layer.linear.weight):
        torch.nn.init.zeros_(kernel)
    torch.testing.assert_close(layer(fields), layer.norm(fields))


@pytest.mark.parametrize("name", ["final-net", "mask-net", "fcn", "qnn-alpha", "edcn", "wukong"])
def test_the_penalty_counts_no_scale_of_a_norm_and_no_gate_of_a_field(name):
    model = build_model(parse_model_settings({"name": name}), make_features(2, 0, 1))
    counted, named = {id(kernel) for kernel in model.kernels()}, dict(model.named_parameters())
    exempt = [one for one in named if {"norm", "gate"} & set(one.split("."))]
    assert exempt and counted and not counted & {id(named[one]) for one in exempt}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "final-net", "num_blocks": 0}, r"model\.num_blocks must be at least 1"),
        ({"name": "mask-net", "mask": {"sizes": []}}, r"model\.mask\.sizes must be at least one size"),
        ({"name": "mask-net", "mask": {"ratio": 0.0}}, r"model\.mask\.ratio must be positive"),
        ({"name": "ecn", "cross": {"num_layers": 0}}, "num_layers must be at least 1"),
        ({"name": "fcn", "linear": {"dropout": 1.0}}, "dropout of cross layers must be at least 0 and below 1"),
        ({"name": "qnn-alpha", "cross": {"num_heads": 0}}, "num_heads must be at least 1"),
        ({"name": "edcn", "num_layers": 0}, r"model\.num_layers must be at least 1"),
        ({"name": "edcn", "temperature": 0.0}, "temperature must be positive"),
        ({"name": "wukong", "stack": {"num_layers": 0}}, r"model\.stack\.num_layers must be at least 1"),
        ({"name": "wukong", "stack": {"rank": 0}}, "rank must be at least 1"),
    ],
)
def test_settings_without_a_meaning_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        build_model(parse_model_settings(config), make_features(2, 0, 0))


def test_widths_must_make_up_the_input():
    with pytest.raises(ConfigError, match=r"widths must be positive and sum to 4, the input width; got \[2, 1\]"):
        MaskedCrossLayer(4, widths=[2, 1])
    with pytest.raises(ConfigError, match="source must be 'x0' or 'previous'; got 'x1'"):
        MaskedCrossLayer(4, source="x1")


def test_newer_layers_refuse_other_shapes():
    with pytest.raises(ShapeError):
        FeatureGate(3)(torch.zeros(5, 4))
    with pytest.raises(ShapeError):
        BilinearFusion(3, 3)(torch.zeros(5, 3), torch.zeros(5, 4))
    with pytest.raises(ShapeError):
        FactorizedLayer(3, 2)(torch.zeros(5, 4))
    with pytest.raises(ShapeError):
        MaskBlock(3, 3, 2, mask_dim=2)(torch.zeros(5, 3), torch.zeros(5, 4))
    with pytest.raises(ShapeError):
        MaskedCrossLayer(3)(torch.zeros(5, 3), torch.zeros(5, 4))
    with pytest.raises(ShapeError):
        FieldGate(3, width=2)(torch.zeros(5, 5))
    with pytest.raises(ShapeError):
        WukongLayer(3, width=2, num_fm=1, num_linear=1, rank=1, sizes=[])(torch.zeros(5, 4, 2))
