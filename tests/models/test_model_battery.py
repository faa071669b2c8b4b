"""What every model of the zoo keeps, whichever it is."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

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
every_model = pytest.mark.parametrize("name", MODELS)


def build(name, features=FEATURES, **embedding):
    """The model with its defaults, but narrow."""
    torch.manual_seed(0)
    values = {"name": name, "embedding": {"dim": 4, **embedding}}
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
@pytest.mark.parametrize("num_rows", [0, 1, 7])
def test_each_row_has_one_finite_logit(name, num_rows):
    logits = build(name)(rows(num_rows))
    assert logits.shape == (num_rows,)
    assert logits.isfinite().all()


@every_model
def test_a_row_is_scored_alike_alone_and_among_others(name):
    model, batch = build(name).eval(), rows(7)
    alone = []
    for i in range(7):
        start, stop = batch.bags[0].offsets[i], batch.bags[0].offsets[i + 1]
        tags = Bag(batch.bags[0].ids[start:stop], torch.tensor([0, stop - start]))
        alone.append(model(Features(batch.categorical[i : i + 1], batch.numeric[i : i + 1], (tags,))))
    torch.testing.assert_close(torch.cat(alone), model(batch))


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
def test_a_model_comes_back_from_its_state(name):
    model = build(name).eval()
    other = build(name).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(rows(7)), model(rows(7)))


@every_model
def test_settings_come_back_from_plain_values(name):
    settings = parse_model_settings({"name": name})
    assert settings.name == name
    assert parse(MODELS[name].settings, to_dict(settings)) == settings


@every_model
def test_every_parameter_learns(name):
    model = build(name)
    labels = torch.randint(2, (NUM_ROWS,)).float()
    F.binary_cross_entropy_with_logits(model(rows(NUM_ROWS)), labels).backward()
    idle = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []


@every_model
def test_random_labels_can_be_learnt_by_heart(name):
    model, batch = build(name), rows(NUM_ROWS)
    labels = torch.randint(2, (NUM_ROWS,)).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(600):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(batch), labels)
        if loss < 0.05:
            return
        loss.backward()
        optimizer.step()
    pytest.fail(f"the loss is still {loss.item():.3f}")


@every_model
def test_unequal_widths_are_taken_or_refused_with_a_way_out(name):
    try:
        model = build(name, dims={"color": 3})
    except ConfigError as refusal:
        assert "needs one embedding width for all features" in refusal.message
        assert "model.embedding.dim" in refusal.hint
    else:
        assert model(rows(7)).shape == (7,)
