"""The loss against its formula."""

from __future__ import annotations

import math

import pytest
import torch

from crossrank.models import build_model, parse_model_settings
from crossrank.schema import Feature
from crossrank.training.loss import data_loss, penalty

FEATURES = [Feature("user", "categorical", 10), Feature("age", "numeric")]


def test_log_loss_is_the_mean_over_rows() -> None:
    logits, labels = torch.tensor([2.0, -1.0]), torch.tensor([1.0, 1.0])
    by_hand = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(1))) / 2
    assert data_loss(logits, labels).item() == pytest.approx(by_hand)


def test_a_row_of_weight_three_counts_as_three_rows() -> None:
    logits, labels = torch.randn(3), torch.tensor([1.0, 0.0, 1.0])
    weighted = data_loss(logits, labels, torch.tensor([3.0, 0.0, 1.0]))
    repeated = data_loss(logits[[0, 0, 0, 2]], labels[[0, 0, 0, 2]])
    torch.testing.assert_close(weighted, repeated)


def test_rows_of_no_weight_give_no_loss() -> None:
    assert data_loss(torch.ones(2), torch.ones(2), torch.zeros(2)).item() == 0


def test_a_number_is_judged_by_its_squared_error() -> None:
    loss = data_loss(torch.tensor([3.0, 0.0]), torch.tensor([1.0, 0.0]), label_kind="real")
    assert loss.item() == pytest.approx(2.0)


@pytest.mark.parametrize("layer", ["full", "low_rank", "mixture"])
def test_the_penalty_counts_cross_and_deep_kernels_alone(layer: str) -> None:
    cross = {"layer": layer, "num_experts": 2, "rank": 2, "activation": "tanh"}
    model = build_model(
        parse_model_settings({"embedding": {"dim": 3}, "deep": {"sizes": [5]}, "cross": cross}), FEATURES
    )
    counted = {"weight", "up", "down", "middle"}
    expected = 0.0
    for name, parameter in model.named_parameters():
        room, own = name.split(".")[0], name.split(".")[-1]
        if room in ("cross", "deep") and own in counted and ".gate." not in name:
            expected += float((parameter.detach().double() ** 2).sum())
    assert penalty(model, 0.5).item() == pytest.approx(0.5 * expected, rel=1e-5)
    assert penalty(model, 0.0) == 0.0
