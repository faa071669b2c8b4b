"""How DCN-V2 puts cross networks and a deep network together (section 3.4; concatenated ones, section 8)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from references.parts import deep, dense, output

from crossrank.models import build_model, parse_model_settings
from crossrank.nn import Features
from crossrank.schema import Feature

FEATURES = [Feature("a", "categorical", 9), Feature("b", "categorical", 8), Feature("n", "numeric")]


def cross(x0, weights, name):
    """x_{l+1} = x_0 ⊙ (W_l x_l + b_l) + x_l, for one row."""
    xl, layer = x0, 0
    while f"{name}.layers.{layer}.weight" in weights:
        xl = x0 * dense(xl, weights[f"{name}.layers.{layer}.weight"], weights[f"{name}.layers.{layer}.bias"]) + xl
        layer += 1
    return xl


def logit(x0, weights, *, structure, num_networks):
    crossed = np.concatenate([cross(x0, weights, f"cross.{number}") for number in range(num_networks)])
    if structure == "stacked":
        return output(deep(crossed, weights, "deep"), weights)
    return output([*crossed, *(deep(x0, weights, "deep") if structure == "parallel" else [])], weights)


@pytest.mark.parametrize("num_networks", [1, 2])
@pytest.mark.parametrize("structure", ["stacked", "parallel", "cross-only"])
def test_logits_are_stacked_parallel_or_crosses_alone(structure, num_networks):
    torch.manual_seed(0)
    settings = {"name": "dcn-v2", "structure": structure, "embedding": {"dim": 3}, "deep": {"sizes": [5, 4]}}
    cross_settings = {"num_layers": 2, "num_networks": num_networks}
    model = build_model(parse_model_settings({**settings, "cross": cross_settings}), FEATURES).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    rows = Features(torch.randint(8, (7, 2)), torch.randn(7, 1, dtype=torch.float64))
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    expected = [
        logit(x0, weights, structure=structure, num_networks=num_networks)
        for x0 in model.embedding(rows).detach().numpy()
    ]
    np.testing.assert_allclose(model(rows).detach().numpy(), expected, rtol=1e-10)
