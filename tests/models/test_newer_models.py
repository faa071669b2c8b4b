"""FinalMLP and the models after it: limits of their layers, what they refuse, and how they start."""

from __future__ import annotations

import pytest
import torch
from random_models import make_features, random_model, random_rows

from crossrank.errors import ConfigError, ShapeError
from crossrank.models import build_model, parse_model_settings
from crossrank.nn import BilinearFusion, FeatureGate


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


def test_newer_layers_refuse_other_shapes():
    with pytest.raises(ShapeError):
        FeatureGate(3)(torch.zeros(5, 4))
    with pytest.raises(ShapeError):
        BilinearFusion(3, 3)(torch.zeros(5, 3), torch.zeros(5, 4))
