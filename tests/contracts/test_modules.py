"""One battery over every public module of crossrank.nn and every model of crossrank.models.

A new module needs one line in ``CASES``; a new model needs none, it is found in ``MODELS``.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils import _pytree as pytree

import crossrank.models
import crossrank.nn
from crossrank.models import MODELS, build_model, parse_model_settings
from crossrank.nn import Bag, Features
from crossrank.schema import Feature

ROWS = (0, 1, 7)
DIM, FIELDS, WIDTH = 6, 3, 2
BASES = ("BaseCrossLayer",)  # without a forward


class Case(NamedTuple):
    """How to make a small module, and its arguments for some rows."""

    make: Callable[[], nn.Module]
    arguments: Callable[[int], tuple[Any, ...]]


def one(rows: int) -> tuple[Tensor]:
    return (torch.randn(rows, DIM),)


def two(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, DIM), torch.randn(rows, DIM)


def fields(rows: int) -> tuple[Tensor]:
    return (torch.randn(rows, FIELDS, WIDTH),)


def ids(rows: int) -> tuple[Tensor]:
    return (torch.stack([torch.randint(5, (rows,)), torch.randint(7, (rows,))], dim=1).int(),)


def features(rows: int) -> tuple[Features]:
    """Two single-valued features of 5 and 7 values, one multivalent of 4, two numbers; the first rows' bag is empty."""
    counts = torch.arange(rows) % 3
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int()
    tags = Bag(torch.randint(4, (int(offsets[-1]),), dtype=torch.int32), offsets)
    return (Features(*ids(rows), torch.randn(rows, 2), (tags,)),)


def made(name: str, *args: Any, **options: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(crossrank.nn, name)(*args, **options)


CASES: dict[str, Case] = {
    "CrossLayer": Case(made("CrossLayer", DIM), two),
    "CrossLayer plain": Case(made("CrossLayer", DIM, bias=False, residual=False), two),
    "LowRankCrossLayer": Case(made("LowRankCrossLayer", DIM, rank=2), two),
    "MixtureCrossLayer": Case(made("MixtureCrossLayer", DIM, rank=2, num_experts=3), two),
    "MixtureCrossLayer sigmoid": Case(
        made("MixtureCrossLayer", DIM, rank=2, num_experts=3, gate="sigmoid", activation="tanh"), two
    ),
    "MixtureCrossLayer constant": Case(
        made("MixtureCrossLayer", DIM, rank=2, num_experts=3, gate="constant", activation="tanh", bias=False), two
    ),
    "SeparableCrossLayer": Case(made("SeparableCrossLayer", DIM, context=[0, 1, 4]), two),
    "GeneralCrossLayer": Case(made("GeneralCrossLayer", DIM, gate="information"), two),
    "GeneralCrossLayer all": Case(
        made(
            "GeneralCrossLayer",
            DIM,
            source="previous",
            inner="tanh",
            heads=2,
            gate="information",
            context=[1, 2],
            bias=False,
        ),
        two,
    ),
    "VectorCrossLayer": Case(made("VectorCrossLayer", DIM), two),
    "CrossNetwork": Case(made("CrossNetwork", DIM, num_layers=3), one),
    "CrossNetwork mixture": Case(
        made("CrossNetwork", DIM, num_layers=2, layer="mixture", rank=2, num_experts=2, activation="tanh"), one
    ),
    "PairProducts": Case(
        made("PairProducts", [2, 1, 2, 1]), lambda rows: (torch.arange(36.0).reshape(6, 6) / 36, *two(rows))
    ),
    "DeepNetwork": Case(made("DeepNetwork", DIM, sizes=[8, 4], activation="tanh"), one),
    "Linear": Case(made("Linear", DIM, 4), one),
    "OutputLayer": Case(made("OutputLayer", DIM), one),
    "FeatureEmbedding": Case(
        made("FeatureEmbedding", [5, 7, 4], [3, 3, 3], num_multivalent=1, num_numeric=2), features
    ),
    "FeatureEmbedding mixed": Case(
        made("FeatureEmbedding", [5, 7, 4], [3, 2, 3], num_multivalent=1, num_numeric=2), features
    ),
    "FactorizationMachine": Case(made("FactorizationMachine"), fields),
    "InnerProducts": Case(made("InnerProducts", FIELDS), fields),
    "OuterProducts": Case(made("OuterProducts", FIELDS, width=WIDTH), fields),
    "OuterProducts vector": Case(made("OuterProducts", FIELDS, width=WIDTH, kernel="vector"), fields),
    "OuterProducts number": Case(made("OuterProducts", FIELDS, width=WIDTH, kernel="number"), fields),
    "CompressedInteractionNetwork": Case(made("CompressedInteractionNetwork", FIELDS, sizes=[4, 4]), fields),
    "CompressedInteractionNetwork halved": Case(
        made("CompressedInteractionNetwork", FIELDS, sizes=[4, 4], split_half=True), fields
    ),
    "InteractingLayer": Case(made("InteractingLayer", WIDTH, num_heads=2, head_dim=3), fields),
    "BiInteraction": Case(made("BiInteraction"), fields),
    "LogarithmicLayer": Case(made("LogarithmicLayer", FIELDS, num_neurons=4), fields),
    "TransformerLayer": Case(made("TransformerLayer", WIDTH, num_heads=2, head_dim=3), fields),
    "AttentionalAggregation": Case(made("AttentionalAggregation", WIDTH, hidden_dim=4), fields),
    "HierarchicalAttention": Case(made("HierarchicalAttention", WIDTH, num_orders=2, hidden_dim=4), fields),
    "ResidualNetwork": Case(made("ResidualNetwork", DIM, sizes=[8, 4], activation="tanh"), one),
    "FeatureGate": Case(made("FeatureGate", DIM), one),
    "FeatureGate context": Case(made("FeatureGate", DIM, context=[0, 2], sizes=[4]), one),
    "BilinearFusion": Case(made("BilinearFusion", DIM, DIM, num_heads=2), two),
    "FactorizedLayer": Case(made("FactorizedLayer", DIM, 4), one),
    "FactorizedNetwork": Case(made("FactorizedNetwork", DIM, sizes=[8, 4], activation="tanh"), one),
    "MaskBlock": Case(made("MaskBlock", DIM, DIM, 4, mask_dim=8), two),
    "FieldGate": Case(made("FieldGate", FIELDS, width=WIDTH), one),
    "FactorizationBlock": Case(
        made("FactorizationBlock", FIELDS, width=WIDTH, num_outputs=2, rank=4, sizes=[5]), fields
    ),
    "WukongLayer": Case(made("WukongLayer", FIELDS, width=WIDTH, num_fm=2, num_linear=2, rank=4, sizes=[5]), fields),
    "WukongLayer same": Case(
        made("WukongLayer", FIELDS, width=WIDTH, num_fm=2, num_linear=1, rank=4, sizes=[]), fields
    ),
    "MaskedCrossLayer": Case(made("MaskedCrossLayer", DIM, widths=[3, 2, 1]), two),
    "MaskedCrossLayer previous": Case(made("MaskedCrossLayer", DIM, source="previous"), two),
    "QuadraticCrossLayer": Case(made("QuadraticCrossLayer", DIM, num_heads=2), two),
    "GatedExperts": Case(
        made("GatedExperts", WIDTH, num_tasks=FIELDS - 1, num_specific=1, num_shared=2, sizes=[5], activation="tanh"),
        fields,
    ),
    "GatedExperts below": Case(
        made("GatedExperts", WIDTH, num_tasks=FIELDS - 1, num_specific=1, num_shared=1, sizes=[5], is_last=False),
        fields,
    ),
    "HashedCrosses": Case(made("HashedCrosses", [(0, 1)], [5, 7], num_buckets=10), ids),
}


def model_case(name: str, **more: Any) -> Case:
    values: dict[str, Any] = {"name": name, "embedding": {"dim": WIDTH}, **more}
    if "deep" in {field.name for field in dataclasses.fields(MODELS[name].settings)}:
        values["deep"] = {"sizes": [8, 4], "activation": "tanh"}
    kinds = [
        Feature("user", "categorical", 5),
        Feature("item", "categorical", 7),
        Feature("tags", "multivalent", 4),
        Feature("age", "numeric"),
        Feature("price", "numeric"),
    ]
    return Case(lambda: build_model(parse_model_settings(values), kinds), features)


CASES |= {name: model_case(name) for name in MODELS}
CASES["ensemble"] = model_case("dcn-v2", ensemble=2)


def public_modules(package: Any) -> Iterator[type[nn.Module]]:
    """Every concrete nn.Module class without an underscore that a file of the package defines."""
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        file = importlib.import_module(info.name)
        for name, value in vars(file).items():
            is_module = isinstance(value, type) and issubclass(value, nn.Module) and not inspect.isabstract(value)
            if is_module and value.__module__ == file.__name__ and name not in BASES and not name.startswith("_"):
                yield value


@pytest.mark.parametrize("package", [crossrank.nn, crossrank.models], ids=lambda package: package.__name__)
def test_every_public_module_is_in_the_battery(package):
    """On its own where it belongs to crossrank.nn; as a model or a part of one in crossrank.models."""
    covered = {type(case.make()) for case in CASES.values()}
    if package is crossrank.models:
        covered = {type(part) for case in CASES.values() for part in case.make().modules()}
    found = set(public_modules(package))
    assert found and not found - covered, f"give these a case: {sorted(cls.__name__ for cls in found - covered)}"


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    torch.manual_seed(0)
    return CASES[request.param]


def double(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments in double precision; ids stay as they are."""
    return pytree.tree_map(lambda value: value.double() if value.is_floating_point() else value, arguments)


def row_of(arguments: tuple[Any, ...], i: int) -> tuple[Any, ...]:
    """One row alone; what has no rows, such as a kernel, stays."""
    if not isinstance(arguments[0], Features):
        return tuple(value[i : i + 1] if len(value) == len(arguments[-1]) else value for value in arguments)
    categorical, numeric, bags = arguments[0]
    own = (Bag(ids[offsets[i] : offsets[i + 1]], offsets[i : i + 2] - offsets[i]) for ids, offsets in bags)
    return (Features(categorical[i : i + 1], numeric[i : i + 1], tuple(own)),)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("rows", ROWS)
def test_there_are_as_many_rows_out_as_in(case, rows, training):
    module = case.make().train(training)
    out = module(*case.arguments(rows))
    gives_logits = isinstance(module, crossrank.models.Model | crossrank.nn.OutputLayer)
    assert out.shape == (rows,) if gives_logits else len(out) == rows
    assert out.isfinite().all()


def test_a_row_does_not_depend_on_the_others(case):
    module, arguments = case.make().double().eval(), double(case.arguments(7))
    assert_close(torch.cat([module(*row_of(arguments, i)) for i in range(7)]), module(*arguments))


def test_the_same_rows_get_the_same_answer_in_evaluation(case):
    module, arguments = case.make().eval(), case.arguments(7)
    assert torch.equal(module(*arguments), module(*arguments))


def test_no_rows_have_a_gradient_too(case):
    module = case.make()
    out = module(*case.arguments(0))
    if list(module.parameters()):
        out.sum().backward()
        assert all(parameter.grad is None or not parameter.grad.any() for parameter in module.parameters())


def test_every_parameter_gets_a_gradient(case):
    module = case.make()
    out = module(*case.arguments(7))
    if list(module.parameters()):
        (out * torch.randn_like(out)).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


def test_gradients_are_the_slopes(case):
    module, arguments = case.make().double(), double(case.arguments(3))
    leaves, spec = pytree.tree_flatten(arguments)
    moving = {i: leaf for i, leaf in enumerate(leaves) if leaf.is_floating_point()}
    everything: dict[Any, Tensor] = dict(module.named_parameters()) | moving
    sizes = [tensor.numel() for tensor in everything.values()]

    def function(flat: Tensor) -> Tensor:
        """The module as a function of all its parameters and inputs in one vector, which takes one check."""
        parts = zip(everything.items(), flat.split(sizes), strict=True)
        given = {key: part.view_as(tensor) for (key, tensor), part in parts}
        inputs = [given.pop(i, leaf) for i, leaf in enumerate(leaves)]
        return torch.func.functional_call(module, given, pytree.tree_unflatten(inputs, spec))

    flat = torch.cat([tensor.detach().flatten() for tensor in everything.values()]).requires_grad_()
    assert torch.autograd.gradcheck(function, flat, fast_mode=True, rtol=1e-5, atol=1e-6)


def test_saved_weights_give_the_same_answers_in_another_copy(case):
    module, other, arguments = case.make().eval(), case.make().eval(), case.arguments(7)
    for parameter in module.parameters():
        nn.init.normal_(parameter)  # also what starts at zero
    other.load_state_dict(load(save(module.state_dict())), strict=True)
    assert torch.equal(other(*arguments), module(*arguments))


def test_the_seed_decides_the_first_weights(case):
    def state(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return dict(case.make().named_parameters())

    first, again, other = state(3), state(3), state(4)
    assert all(torch.equal(first[name], again[name]) for name in first)
    # What starts at zero, or at one, starts so under every seed.
    for name, weight in first.items():
        fixed = any(torch.equal(weight, torch.full_like(weight, start)) for start in (0.0, 1.0))
        assert torch.equal(weight, other[name]) == fixed, name


@pytest.mark.slow
def test_an_exported_graph_gives_the_same_answers_for_any_number_of_rows(case):
    module, arguments = case.make().eval(), case.arguments(7)
    rows = pytree.tree_map(lambda value: {0: torch.export.Dim.AUTO}, arguments)
    exported = torch.export.export(module, arguments, dynamic_shapes=rows, strict=False).module()
    for count in (7, 3):
        arguments = case.arguments(count)
        assert_close(exported(*arguments), module(*arguments))
