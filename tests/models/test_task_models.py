"""Models with a tower for each of several labels: their formulas for several tasks, and their limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_models import make_features, random_rows
from references.tasks import mmoe, ple, shared_bottom

from crossrank.errors import ConfigError
from crossrank.models import build_model, parse_model_settings

FEATURES = make_features(2, 1, 1)
SMALL = {"embedding": {"dim": 2}, "deep": {"sizes": [5, 3], "activation": "tanh"}, "tower_sizes": [4]}
EXPERTS = {"num_levels": 2, "num_specific": 1, "num_shared": 2}
CASES = [
    (shared_bottom, {"name": "shared-bottom"}, {}),
    (shared_bottom, {"name": "shared-bottom", "num_cross_layers": 2, "tower_sizes": []}, {}),
    (mmoe, {"name": "mmoe", "num_experts": 3}, {"num_experts": 3}),
    (mmoe, {"name": "mmoe", "num_experts": 2, "num_cross_layers": 1}, {"num_experts": 2}),
    (ple, {"name": "ple", **EXPERTS}, EXPERTS),
    (
        ple,
        {"name": "ple", **EXPERTS, "num_levels": 1, "num_specific": 2},
        {**EXPERTS, "num_levels": 1, "num_specific": 2},
    ),
]


def made(config, *, num_outputs):
    model = build_model(parse_model_settings({**SMALL, **config}), FEATURES, num_outputs=num_outputs).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7)
    return model


@pytest.mark.parametrize("num_tasks", [2, 3])
@pytest.mark.parametrize(("reference", "config", "options"), CASES)
def test_the_logits_of_several_tasks_are_the_published_formula(reference, config, options, num_tasks):
    torch.manual_seed(0)
    relu = {**SMALL["deep"], "activation": "relu"}
    model, rows = made({"deep": relu, **config}, num_outputs=num_tasks), random_rows(FEATURES, 5)
    weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    expected = [
        reference(x0, None, weights, num_embedded=3, width=2, num_tasks=num_tasks, **options)
        for x0 in model.embedding(rows).detach().numpy()
    ]
    assert model(rows).shape == (5, num_tasks)
    np.testing.assert_allclose(model(rows).detach().numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("reference", "config", "options"), CASES)
def test_gradients_of_several_tasks_are_right(reference, config, options):
    torch.manual_seed(0)
    model, rows = made(config, num_outputs=2), random_rows(FEATURES, 2)
    assert torch.autograd.gradcheck(lambda *_: model(rows), tuple(model.parameters()), fast_mode=True)


@pytest.mark.parametrize("name", ["shared-bottom", "mmoe", "ple"])
def test_no_tower_reads_what_is_of_another_task_alone(name):
    model, rows = made({"name": name}, num_outputs=3), random_rows(FEATURES, 4)
    before = model(rows)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.startswith("towers.1.") or ".specific.1." in key or ".gate.1." in key:
                parameter.normal_()
    moved = (model(rows) - before).abs().amax(dim=0) > 1e-9
    # In PLE the next level's shared experts read every task's.
    assert moved.tolist() == ([True] * 3 if name == "ple" else [False, True, False])


def test_one_expert_is_a_shared_bottom():
    one, shared = (
        made({"name": "mmoe", "num_experts": 1}, num_outputs=2),
        made({"name": "shared-bottom"}, num_outputs=2),
    )
    state = {name.replace("levels.0.shared.0", "deep"): value for name, value in one.state_dict().items()}
    shared.load_state_dict({name: value for name, value in state.items() if ".gate." not in name})
    rows = random_rows(FEATURES, 4)
    torch.testing.assert_close(one(rows), shared(rows))


def test_without_tower_layers_a_shared_bottom_is_a_deep_network_with_several_logits():
    deep = {"embedding": SMALL["embedding"], "deep": SMALL["deep"]}
    plain = build_model(parse_model_settings({"name": "dnn", **deep}), FEATURES, num_outputs=2).double()
    shared = made({"name": "shared-bottom", "tower_sizes": []}, num_outputs=2)
    shared.load_state_dict(plain.state_dict())
    rows = random_rows(FEATURES, 4)
    torch.testing.assert_close(shared(rows), plain(rows))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "shared-bottom", "num_cross_layers": -1}, "model.num_cross_layers must not be negative; got -1"),
        ({"name": "ple", "tower_sizes": [0]}, r"model.tower_sizes must be positive; got \[0\]"),
        ({"name": "mmoe", "num_experts": 0}, "model.num_experts must be at least 1; got 0"),
        ({"name": "ple", "num_shared": 0}, "model.num_shared must be at least 1; got 0"),
    ],
)
def test_settings_that_make_no_model_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        parse_model_settings(values)
