"""What every model of the zoo keeps, beside what ``tests/contracts`` asks of every module."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from crossrank.config import parse, to_dict
from crossrank.errors import ConfigError
from crossrank.models import MODELS, build_model, parse_model_settings
from crossrank.nn import Bag, Features
from crossrank.schema import Feature

NUM_ROWS = 200
FEATURES = [
    Feature("row", "categorical", NUM_ROWS),
    Feature("color", "categorical", 7),
    Feature("tags", "multivalent", 5),
    Feature("age", "numeric"),
    Feature("price", "numeric"),
]
PATHS = ("deepfm", "xdeepfm", "wide-deep", "autoint-plus", "afn-plus", "final-net", "fcn")  # beside parallel structures
STACKED = {"mask-net": "serial"}  # what it calls so; its parallel blocks meet below the deep network
every_model = pytest.mark.parametrize("name", MODELS)


def build(name, features=FEATURES, *, structure=None, **embedding):
    """The model with its defaults, but narrow."""
    torch.manual_seed(0)
    values = {"name": name, "embedding": {"dim": 4, **embedding}}
    if structure:
        values["structure"] = structure
    if any(field.name == "deep" for field in dataclasses.fields(MODELS[name].settings)):
        values["deep"] = {"sizes": [32, 32]}
    return build_model(parse_model_settings(values), features)


def rows(num_rows, *, seed=0):
    """Random rows; the first feature tells each from all others."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.arange(num_rows), torch.randint(7, (num_rows,), generator=generator)], dim=1)
    counts = torch.arange(num_rows) % 3  # bags of no, one and two tags
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    tags = Bag(torch.randint(5, (int(counts.sum()),), generator=generator), offsets)
    return Features(ids, torch.randn(num_rows, 2, generator=generator), (tags,))


@every_model
def test_one_field_is_enough_or_refused(name):
    field = [Feature("color", "categorical", 7)]
    try:
        model = build(name, field)
    except ConfigError as refusal:
        assert "color" in str(refusal)
        assert refusal.hint
        return
    logits = model(Features(torch.arange(7)[:, None], torch.empty(7, 0)))
    assert logits.shape == (7,)
    F.binary_cross_entropy_with_logits(logits, torch.tensor([0.0, 1, 0, 1, 1, 0, 1])).backward()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []


@every_model
def test_settings_come_back_from_plain_values(name):
    settings = parse_model_settings({"name": name})
    assert settings.name == name
    assert parse(MODELS[name].settings, to_dict(settings)) == settings


@every_model
def test_every_parameter_learns_and_random_labels_are_learnt_by_heart(name):
    model, batch = build(name), rows(NUM_ROWS)
    labels = torch.randint(2, (NUM_ROWS,)).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(600):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(batch), labels)
        if loss < 0.05:
            return
        loss.backward()
        idle = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()]
        assert step or not idle
        optimizer.step()
    pytest.fail(f"the loss is still {loss.item():.3f}")


@every_model
def test_the_mean_of_the_paths_logits_is_the_logit(name):
    structures = [{}]
    if "structure" in {field.name for field in dataclasses.fields(MODELS[name].settings)}:
        structures = [{"structure": structure} for structure in (STACKED.get(name, "stacked"), "parallel")]
    for structure in structures:
        model = build(name, **structure).double().eval()
        nn.init.normal_(model.output.bias) if hasattr(model, "output") else None
        heads = model.heads(rows(7))
        assert heads.shape[0] == 7 and heads.dim() == 2
        several = name in PATHS or (structure == {"structure": "parallel"} and name not in STACKED)
        assert heads.shape[1] > 1 or not several
        if heads.shape[1] > 1:
            torch.testing.assert_close(heads.mean(dim=1), model(rows(7)), rtol=1e-10, atol=1e-10)


@every_model
def test_unequal_widths_are_taken_or_refused_with_a_way_out(name):
    try:
        model = build(name, dims={"color": 3})
    except ConfigError as refusal:
        assert "needs one embedding width for all features" in refusal.message
        assert "model.embedding.dim" in refusal.hint
    else:
        assert model(rows(7)).shape == (7,)
