"""DCN, Deep Crossing, NFM, AFN, AutoInt and InterHAt: limits of their layers, what they refuse, and how they start."""

from __future__ import annotations

import pytest
import torch
from random_models import make_features, random_rows

from crossrank.errors import ConfigError, ShapeError
from crossrank.models import build_model, parse_model_settings
from crossrank.nn import (
    AttentionalAggregation,
    BiInteraction,
    FactorizationMachine,
    Features,
    HierarchicalAttention,
    InteractingLayer,
    LogarithmicLayer,
    ResidualNetwork,
    TransformerLayer,
)
from crossrank.schema import Feature


def test_nfm_without_hidden_layers_is_a_factorization_machine():
    features = make_features(3, 1, 2)
    nfm_0, fm = (
        build_model(parse_model_settings({"name": name, **extra}), features)
        for name, extra in [("nfm", {"deep": {"sizes": []}}), ("fm", {})]
    )
    rows = random_rows(features, 7)
    fm.load_state_dict(
        {name: value for name, value in nfm_0.state_dict().items() if "output" not in name} | {"bias": torch.zeros(1)}
    )
    torch.nn.init.ones_(nfm_0.output.weight)
    torch.testing.assert_close(nfm_0(rows), fm(rows))


def test_bi_interaction_sums_to_the_factorization_machine():
    fields = torch.randn(7, 4, 3, dtype=torch.float64)
    torch.testing.assert_close(BiInteraction()(fields).sum(dim=1), FactorizationMachine()(fields))


def test_interacting_layer_without_queries_attends_to_the_mean():
    layer, fields = InteractingLayer(3, num_heads=2, head_dim=4, residual=False).double(), torch.randn(5, 6, 3).double()
    torch.nn.init.zeros_(layer.query.weight)
    mean = (fields @ layer.value.weight.T).mean(dim=1, keepdim=True).relu()
    torch.testing.assert_close(layer(fields), mean.expand(5, 6, 8))


def test_transformer_without_its_last_matrices_is_the_identity():
    layer, fields = TransformerLayer(3, num_heads=2, head_dim=4), torch.randn(5, 6, 3)
    for kernel in (layer.mix.weight, layer.outer.weight):
        torch.nn.init.zeros_(kernel)
    torch.testing.assert_close(layer(fields), fields)


def test_aggregation_without_context_is_the_mean():
    layer, vectors = AttentionalAggregation(3, hidden_dim=4), torch.randn(5, 6, 3)
    torch.nn.init.zeros_(layer.context)
    torch.testing.assert_close(layer(vectors), vectors.mean(dim=1))


def test_hierarchy_of_one_order_is_one_aggregation():
    layer, fields = HierarchicalAttention(3, num_orders=1, hidden_dim=4), torch.randn(5, 6, 3)
    torch.testing.assert_close(layer(fields), layer.orders[0](fields))


def test_residual_units_of_zeros_are_the_activation():
    layer, x = ResidualNetwork(3, sizes=[4, 5]), torch.randn(7, 3)
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    torch.testing.assert_close(layer(x), x.relu())
    assert ResidualNetwork(3, sizes=[])(x) is x


def test_residual_units_drop_only_in_training():
    torch.manual_seed(0)
    layer, x = ResidualNetwork(3, sizes=[400], dropout=0.5), torch.randn(1, 3)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_powers_of_zero_and_one_choose_the_fields_to_multiply():
    layer, fields = LogarithmicLayer(3, num_neurons=2).double(), torch.randn(5, 3, 4).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]))
    products = layer(fields)
    torch.testing.assert_close(products[..., 0], (fields[:, 0] * fields[:, 2]).abs())
    torch.testing.assert_close(products[..., 1], torch.ones(5, 4).double())


def test_a_field_of_zeros_leaves_the_crosses_and_their_gradients_finite():
    layer, fields = LogarithmicLayer(3, num_neurons=2), torch.zeros(5, 3, 4, requires_grad=True)
    layer(fields).sum().backward()
    assert fields.grad.isfinite().all() and layer.weight.grad.isfinite().all()


def test_crosses_of_learned_order_start_near_one():
    torch.manual_seed(0)
    crosses = LogarithmicLayer(40, num_neurons=200)(torch.randn(100, 40, 16) / 4)
    assert crosses.min() > 0.05 and crosses.max() < 20
    assert LogarithmicLayer(40, num_neurons=500).weight.std().item() == pytest.approx(0.2 / 40**0.5, rel=0.05)


@pytest.mark.parametrize("kernel", ["query", "key", "value", "skip"])
def test_each_projection_is_he_normal_on_its_own(kernel):
    torch.manual_seed(0)
    layer = InteractingLayer(50, num_heads=2, head_dim=40)
    assert getattr(layer, kernel).weight.std().item() == pytest.approx((2 / 50) ** 0.5, rel=0.1)


def test_dcn_takes_any_widths_and_stays_a_multiple_of_x0_without_biases():
    features = [Feature("a", "categorical", 5), Feature("b", "categorical", 6), Feature("n", "numeric")]
    settings = parse_model_settings({"name": "dcn", "embedding": {"dims": {"a": 3}}, "structure": "cross-only"})
    model = build_model(settings, features)
    x0 = model.embedding(Features(torch.tensor([[1, 2], [3, 4]]), torch.randn(2, 1)))
    ratios = model.cross(x0) / x0
    torch.testing.assert_close(ratios, ratios[:, :1].expand_as(ratios))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "autoint", "attention": {"num_layers": 0}}, "num_layers must be at least 1"),
        ({"name": "autoint", "attention": {"num_heads": 0}}, "num_heads must be at least 1"),
        ({"name": "afn", "num_neurons": 0}, "num_neurons must be at least 1"),
        ({"name": "dcn", "cross": {"num_layers": 0}}, "num_layers must be at least 1"),
        ({"name": "interhat", "attention": {"num_orders": 0}}, "num_orders must be at least 1"),
    ],
)
def test_counts_below_one_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        build_model(parse_model_settings(config), make_features(2, 0, 0))


def test_layers_refuse_other_shapes():
    with pytest.raises(ShapeError):
        InteractingLayer(3, num_heads=1, head_dim=2)(torch.zeros(5, 4, 2))
    with pytest.raises(ShapeError):
        TransformerLayer(3, num_heads=1, head_dim=2)(torch.zeros(5, 4, 2))
    with pytest.raises(ShapeError):
        LogarithmicLayer(3, num_neurons=2)(torch.zeros(5, 4, 2))
    with pytest.raises(ShapeError):
        AttentionalAggregation(3, hidden_dim=2)(torch.zeros(5, 4, 2))
    with pytest.raises(ShapeError):
        ResidualNetwork(3, sizes=[2])(torch.zeros(5, 4))
