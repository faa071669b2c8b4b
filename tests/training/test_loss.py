"""The loss against its formula."""

from __future__ import annotations

import math

import pytest
import torch

from crossrank.errors import ConfigError
from crossrank.models import build_model, parse_model_settings
from crossrank.models.dnn import DNN
from crossrank.nn import FeatureEmbedding
from crossrank.schema import Feature
from crossrank.training import TrainingSettings
from crossrank.training.loss import LogLoss, PairwiseLogistic, SquaredError, penalty

FEATURES = [Feature("user", "categorical", 10), Feature("age", "numeric")]


def test_log_loss_is_the_mean_over_rows() -> None:
    logits, labels = torch.tensor([2.0, -1.0]), torch.tensor([1.0, 1.0])
    by_hand = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(1))) / 2
    assert LogLoss()(logits, labels).item() == pytest.approx(by_hand)


def test_a_row_of_weight_three_counts_as_three_rows() -> None:
    logits, labels = torch.randn(3), torch.tensor([1.0, 0.0, 1.0])
    weighted = LogLoss()(logits, labels, torch.tensor([3.0, 0.0, 1.0]))
    repeated = LogLoss()(logits[[0, 0, 0, 2]], labels[[0, 0, 0, 2]])
    torch.testing.assert_close(weighted, repeated)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_only_the_proportions_of_weights_count(scale: float) -> None:
    logits, labels, weights = torch.randn(3), torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0.3, 0.1, 0.5])
    torch.testing.assert_close(LogLoss()(logits, labels, weights * scale), LogLoss()(logits, labels, weights))


def test_rows_of_no_weight_give_no_loss() -> None:
    assert LogLoss()(torch.ones(2), torch.ones(2), torch.zeros(2)).item() == 0


def test_a_number_is_judged_by_its_squared_error() -> None:
    loss = SquaredError()(torch.tensor([3.0, 0.0]), torch.tensor([1.0, 0.0]))
    assert loss.item() == pytest.approx(2.0)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_pairwise_loss_is_the_mean_over_pairs_of_a_group(weighted: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(12, generator=draw), torch.randint(0, 3, (12,), generator=draw).float()
    groups, weights = torch.arange(12) % 3, torch.rand(12, generator=draw) if weighted else torch.ones(12)
    total, share = 0.0, 0.0
    for i in range(12):
        for j in range(12):
            if groups[i] == groups[j] and labels[i] > labels[j]:
                weight = float(weights[i] * weights[j])
                total += weight * math.log(1 + math.exp(float(scores[j] - scores[i])))
                share += weight
    got = PairwiseLogistic()(scores, labels, weights if weighted else None, groups)
    assert got.item() == pytest.approx(total / share, rel=1e-5)


def test_a_batch_without_pairs_teaches_nothing() -> None:
    scores = torch.ones(3, requires_grad=True)
    loss = PairwiseLogistic()(scores, torch.tensor([1.0, 0.0, 1.0]), None, torch.tensor([0, 1, 2]))
    loss.backward()
    assert loss.item() == 0 and not scores.grad.any()


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


@pytest.mark.parametrize("name", ["fm", "logistic-regression"])
def test_a_penalty_that_counts_nothing_is_refused(name: str) -> None:
    model = build_model(parse_model_settings({"name": name}), FEATURES)
    with pytest.raises(ConfigError, match=r"l2 counts .*table_decay"):
        TrainingSettings(l2=0.1).for_model(model, "cpu")


class TwoTables(DNN):
    """A table of its own beside x0, under a name of its own."""

    def __init__(self, layout, settings) -> None:
        super().__init__(layout, settings)
        self.wide = FeatureEmbedding([10], [1], num_numeric=1)

    def forward(self, features):
        return super().forward(features) + self.wide(features)[:, 0]


def test_the_penalty_leaves_every_table_alone() -> None:
    """Its rows may be updated one by one, which no sum over all of them could follow."""
    plain = build_model(parse_model_settings({"name": "dnn", "embedding": {"dim": 3}}), FEATURES)
    model = TwoTables(plain.layout, parse_model_settings({"name": "dnn", "embedding": {"dim": 3}}))
    assert not {id(weight) for weight in model.kernels()} & {id(table.weight) for table in model.tables()}
    assert len(model.tables()) == 2
