"""A row's own explanation, against sums over the definition."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest
import torch
from torch import nn

from crossrank.data import Encoder
from crossrank.errors import ConfigError
from crossrank.evaluation.row_explanation import average_row, explain_row
from crossrank.models import Model, build_model, parse_model_settings
from crossrank.nn import CrossNetwork
from crossrank.schema import InputLayout, Label, Numeric, Schema


def trained(encoder, **settings):
    torch.manual_seed(0)
    model = build_model(parse_model_settings({"embedding": {"dim": 3}, **settings}), encoder.features)
    return SimpleNamespace(model=model.eval(), encoder=encoder)


def total(found) -> float:
    return found.base + sum(part["contribution"] for part in [*found.alone, *found.pairs])


@pytest.fixture(scope="module")
def row(clicks):
    return clicks.row(5, named=True)


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "cross-net", "cross": {"num_layers": 1}},
        {"name": "cross-net", "cross": {"num_layers": 4}},
        {"name": "cross-net", "cross": {"layer": "low_rank", "rank": 4, "num_networks": 2}},
        {"name": "cross-net-mix", "cross": {"layer": "mixture", "activation": "tanh", "gate": "sigmoid"}},
        {"name": "cross-net", "cross": {"source": "previous", "num_layers": 3}},
        {"name": "cross-net", "cross": {"gate": "information", "inner": "tanh", "heads": 2}},
        {"name": "cross-net", "cross": {"context": ["user", "hour"]}},
        {"name": "dcn", "structure": "cross-only"},
        {"name": "dcn-v2", "deep": {"sizes": []}},
    ],
    ids=str,
)
def test_the_parts_of_a_cross_network_add_up_to_the_logit(dataset, row, settings) -> None:
    run = trained(dataset.encoder, **settings)
    found = explain_row(run, row)
    features = dataset.encoder.encode_rows([row]).features()
    assert found.method == "exact"
    assert found.logit == pytest.approx(run.model(features).item(), abs=1e-6)
    assert total(found) == pytest.approx(found.logit, abs=2e-5)
    assert found.difference == pytest.approx(found.logit - total(found), abs=1e-6)


class Kinked(Model):
    """A model of somebody's own: a ReLU layer behind the cross network."""

    def __init__(self, layout) -> None:
        super().__init__(layout)
        self.cross = CrossNetwork(layout.input_dim, num_layers=1)
        self.hidden = nn.Linear(layout.input_dim, 16)
        self.activation = torch.relu

    def logits(self, x0):
        return self.activation(self.hidden(self.cross(x0))).sum(dim=1)


class WithLinearTerm(Kinked):
    """Its logit is more than ``logits`` says."""

    def forward(self, features):
        return super().forward(features) + 1.0


def own(encoder, kind=Kinked):
    torch.manual_seed(0)
    model = kind(InputLayout.plan(encoder.features, embedding_dim=3)).eval()
    with torch.no_grad():
        model.embedding.weight.mul_(20)  # as far from the average row as trained vectors are
    return SimpleNamespace(model=model, encoder=encoder)


def test_a_model_with_kinks_of_its_own_is_not_called_exact(dataset, row) -> None:
    found = explain_row(own(dataset.encoder), row)
    assert found.method == "removal"
    assert found.difference == pytest.approx(found.logit - total(found), abs=1e-5)
    assert abs(found.difference) > 0.01


def test_a_smooth_model_of_ones_own_is_exact(dataset, row) -> None:
    run = own(dataset.encoder)
    run.model.activation = torch.tanh
    found = explain_row(run, row)
    assert found.method == "exact"
    assert total(found) == pytest.approx(found.logit, abs=1e-4)


def test_what_a_forward_of_ones_own_adds_is_not_explained_and_said_so(dataset, row) -> None:
    run = own(dataset.encoder, WithLinearTerm)
    run.model.activation = torch.tanh
    found = explain_row(run, row)
    assert found.logit == pytest.approx(run.model(dataset.encoder.encode_rows([row]).features()).item())
    assert found.method == "removal"
    assert found.difference == pytest.approx(found.logit - total(found), abs=1e-5)


@pytest.mark.parametrize(("scale", "method"), [(200, "exact"), (1000, "removal")])
def test_a_mixture_of_large_weights_adds_up_or_says_by_how_much_not(dataset, row, scale, method) -> None:
    run = trained(dataset.encoder, name="cross-net-mix")
    with torch.no_grad():
        run.model.embedding.weight.mul_(scale)
    found = explain_row(run, row)
    assert found.method == method
    assert found.difference == pytest.approx(found.logit - total(found), abs=1e-6 * abs(found.logit))
    assert (abs(found.difference) <= 1e-4 * abs(found.logit)) is (method == "exact")


def test_a_pair_of_one_layer_gets_its_centred_products(dataset, row) -> None:
    run = trained(dataset.encoder, name="cross-net", cross={"num_layers": 1})
    model, layout = run.model, run.model.layout
    x0 = model.embedding(dataset.encoder.encode_rows([row]).features())[0].detach()
    centred = (x0 - average_row(model, dataset.encoder)).tolist()
    weight, output = model.cross_networks()[0].layers[0].weight.tolist(), model.output.weight[0].tolist()
    found = {(pair["left"], pair["right"]): pair["contribution"] for pair in explain_row(run, row).pairs}
    for left, right in [("country", "language"), ("hour", "price"), ("device", "device"), ("user", "tags")]:
        expected = 0.0
        for one, two in {(left, right), (right, left)}:
            for a in range(layout[one].start, layout[one].stop):
                for b in range(layout[two].start, layout[two].stop):
                    expected += output[a] * centred[a] * weight[a][b] * centred[b]
        got = found[left, right] if (left, right) in found else found[right, left]
        assert got == pytest.approx(expected, abs=1e-6)


def test_a_cross_of_three_is_shared_equally_by_its_pairs() -> None:
    schema = Schema([Numeric(name=name, standardize=False) for name in "abc"], Label(name="y"))
    frame = pl.DataFrame({name: [-1.0, 1.0] for name in "abc"})
    run = trained(Encoder.fit(frame, schema), name="cross-net", cross={"num_layers": 2, "bias": False})
    first, second = run.model.cross_networks()[0].layers
    with torch.no_grad():
        for layer, place in ((first, (1, 2)), (second, (0, 1))):  # x_2 has a (b c) in its first element
            layer.weight.zero_()
            layer.weight[place] = 1.0
        run.model.output.weight.copy_(torch.tensor([[1.0, 0.0, 0.0]]))
    found = explain_row(run, {"a": 2.0, "b": 3.0, "c": 5.0})
    pairs = {pair["left"] + pair["right"]: pair["contribution"] for pair in found.pairs}
    assert pairs["bc"] == pytest.approx(10)
    assert pairs["ac"] == pytest.approx(10)
    assert pairs["ab"] == pytest.approx(10 + 6)  # a third of a b c, and a b of the second layer
    assert {part["feature"]: part["contribution"] for part in found.alone} == {"a": 2.0, "b": 0.0, "c": 0.0}


@pytest.mark.parametrize(
    "settings",
    [
        {"deep": {"sizes": [6]}},
        {"structure": "parallel", "deep": {"sizes": [6]}, "cross": {"layer": "mixture", "rank": 2, "gate": "sigmoid"}},
        {"name": "cross-net-mix", "cross": {"layer": "mixture", "rank": 2, "activation": "relu"}},
        {"name": "gdcn", "deep": {"sizes": [6]}},
        {"name": "cross-net", "cross": {"source": "previous", "inner": "relu", "context": ["user", "hour"]}},
        {"name": "ecn", "cross": {"num_layers": 2}},
        {"name": "lcn", "cross": {"num_layers": 2}},
        {"name": "qnn-alpha", "cross": {"num_layers": 2, "num_heads": 2}},
    ],
    ids=str,
)
def test_removal_is_the_logit_less_that_without_the_products(dataset, row, settings) -> None:
    run = trained(dataset.encoder, **settings)
    found = explain_row(run, row)
    assert found.method == "removal"
    pairs = {(pair["left"], pair["right"]): pair["contribution"] for pair in found.pairs}
    for left, right in [("country", "language"), ("hour", "price"), ("device", "device")]:
        removed = logit_without(run, row, left, right)
        got = pairs[left, right] if (left, right) in pairs else pairs[right, left]
        assert got == pytest.approx(found.logit - removed, abs=1e-5)


@torch.no_grad()
def logit_without(run, row, left: str, right: str) -> float:
    """The forward pass written out, with two blocks of each layer taken off."""
    model = run.model
    x0 = model.embedding(run.encoder.encode_rows([row]).features())[0]
    mean = average_row(model, run.encoder)
    crossed, true, average = x0, x0, mean
    for layer in model.cross_networks()[0].layers:
        weight = layer.matrix(true[None])
        output = layer(x0, crossed)
        for one, two in {(left, right), (right, left)}:
            i, j = model.layout[one].slice, model.layout[two].slice
            by_itself = getattr(layer, "source", layer.label) in ("previous", "quadratic")
            factor = crossed - average if by_itself else x0 - mean
            output[i] -= factor[i] * (weight[i, j] @ (crossed - average)[j])
        crossed, true, average = output, layer(x0, true), layer(mean, average)
    final, structure = crossed, getattr(model, "structure", "cross-only")
    if structure == "stacked":
        final = model.deep(crossed)
    elif structure == "parallel":
        final = torch.cat([crossed, model.deep(x0)])
    return model.output(final).item()


@torch.no_grad()
@pytest.mark.parametrize("structure", ["stacked", "parallel"])
def test_removal_takes_the_pooled_numbers_of_a_pair_too(dataset, row, structure) -> None:
    run = trained(dataset.encoder, structure=structure, deep={"sizes": [6]}, cross={"num_layers": 1, "pooled": "first"})
    found, model = explain_row(run, row), run.model
    assert found.method == "removal"
    pairs = {(pair["left"], pair["right"]): pair["contribution"] for pair in found.pairs}
    x0 = model.embedding(run.encoder.encode_rows([row]).features())[0]
    mean = average_row(model, run.encoder)
    (layer,), (pool,), u = model.cross[0].layers, model.pooled, x0 - mean
    for left, right in [("country", "language"), ("hour", "price"), ("device", "device")]:
        crossed, pooled = layer(x0, x0), pool(layer.weight, x0[None], x0[None])[0]
        names = [{model.layout.names[i], model.layout.names[j]} for i, j in pool.pairs]
        for one, two in {(left, right), (right, left)}:
            i, j = model.layout[one].slice, model.layout[two].slice
            products = u[i] * (layer.weight[i, j] @ u[j])
            crossed[i] -= products
            pooled[names.index({left, right})] -= products.sum()
        hidden = model.deep(torch.cat([crossed if structure == "stacked" else x0, pooled]))
        removed = model.output(hidden if structure == "stacked" else torch.cat([crossed, hidden])).item()
        got = pairs[left, right] if (left, right) in pairs else pairs[right, left]
        assert got == pytest.approx(found.logit - removed, abs=1e-5)


def test_features_alone_and_pairs_come_strongest_first_and_once(run, row) -> None:
    found = explain_row(run, row)
    count = len(run.schema.names)
    assert {part["feature"]: part["value"] for part in found.alone} == {name: row[name] for name in run.schema.names}
    assert (
        len({frozenset((p["left"], p["right"])) for p in found.pairs}) == len(found.pairs) == count * (count + 1) // 2
    )
    for parts in (found.alone, found.pairs):
        sizes = [abs(part["contribution"]) for part in parts]
        assert sizes == sorted(sizes, reverse=True)


def test_an_average_row_has_nothing_to_explain(dataset) -> None:
    run = trained(dataset.encoder, name="cross-net")
    names = [slot.name for slot in run.model.layout.of_kind("numeric")]
    found = explain_row(run, dict.fromkeys(dataset.schema.names))
    alone = {part["feature"]: part["contribution"] for part in found.alone}
    assert all(alone[name] == pytest.approx(0, abs=1e-6) for name in names)  # a missing number is the mean


def test_a_model_without_cross_layers_is_refused(dataset, row) -> None:
    with pytest.raises(ConfigError, match="with cross layers; got DNN"):
        explain_row(trained(dataset.encoder, name="dnn"), row)
