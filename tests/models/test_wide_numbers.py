"""Models on numeric features that are wider than one number, and on several features of one column."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from crossrank.models import build_model, parse_model_settings
from crossrank.models.build import MODELS
from crossrank.models.cost import model_cost
from crossrank.models.fields import FieldStack
from crossrank.nn import Features
from crossrank.schema import Feature, InputLayout

FEATURES = [
    Feature("color", "categorical", 7),
    Feature("age (value)", "categorical", 5, column="age"),
    Feature("age", "numeric"),
    Feature("age (pieces)", "numeric", 0, 3, "age"),
    Feature("age (missing)", "numeric", column="age"),
]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_takes_a_feature_of_several_numbers_and_depends_on_it(name):
    torch.manual_seed(0)
    settings = parse_model_settings({"name": name})
    model = build_model(settings, FEATURES)
    for table in model.parameters():
        torch.nn.init.normal_(table, std=0.3)
    ids, numbers = torch.tensor([[1, 2]] * 2), torch.rand(2, 5)
    numbers[1] = numbers[0]
    numbers[1, 2] += 0.5  # one piece only
    one, other = model.predict_logits([Features(ids, numbers)]).tolist()
    assert np.isfinite([one, other]).all() and one != other
    assert model_cost(settings, FEATURES).parameters["embedding"] > 0


def test_the_field_of_several_numbers_is_the_sum_of_theirs():
    layout = InputLayout.plan(FEATURES, embedding_dim=4)
    fields = FieldStack(layout, needed_by="this")
    x0 = torch.rand(3, layout.input_dim)
    found = fields(x0)
    vectors, numbers = fields.vectors.detach().double(), x0[:, 8:].double()
    expected = torch.stack(
        [
            torch.stack([sum(numbers[row, k] * vectors[k] for k in ks) for ks in ([0], [1, 2, 3], [4])])
            for row in range(3)
        ]
    )
    assert found.shape == (3, 5, 4)
    torch.testing.assert_close(found[:, 2:].detach().double(), expected, rtol=1e-6, atol=1e-7)


def test_widths_and_columns_survive_another_embedding_width():
    layout = InputLayout.plan(FEATURES, embedding_dim=4).with_width(1)
    assert [(slot.column, slot.width) for slot in layout.slots] == [
        *(("color", 1), ("age", 1)),
        *(("age", 1), ("age", 3), ("age", 1)),
    ]
    assert layout.num_numbers == 5 and layout.input_dim == 7
