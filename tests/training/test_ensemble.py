"""Several seeds as one model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import crossrank as cr
from crossrank.errors import ConfigError
from crossrank.evaluation import explain_row
from crossrank.evaluation.crosses import measure_crosses
from crossrank.evaluation.evaluate import score_split
from crossrank.models import build_model, parse_model_settings
from crossrank.models.cost import model_cost
from crossrank.nn import Features
from crossrank.reports import write_report
from crossrank.schema import Feature
from crossrank.training import Config

CONFIG = {
    "model": {"embedding": {"dim": 4}, "structure": "cross-only"},
    "training": {"learning_rate": 0.02, "epochs": 3, "batch_size": 128, "average_decay": 0.9, "device": "cpu"},
}


def train(dataset, folder, *, ensemble=1, **options) -> cr.Run:
    config = CONFIG | {"model": CONFIG["model"] | {"ensemble": ensemble}}
    return cr.train(dataset, into=folder, config=Config.parse(config), progress=False, **options)


@pytest.fixture
def runs(plain_dataset, tmp_path):
    """An ensemble, and its members trained alone."""
    members = [train(plain_dataset, tmp_path / f"alone-{seed}", seed=seed) for seed in range(3)]
    return train(plain_dataset, tmp_path / "ensemble", ensemble=3), members


def test_an_ensemble_answers_the_mean_logit_of_its_seeds(runs, plain_dataset) -> None:
    ensemble, members = runs
    alone = np.stack([score_split(member.model, plain_dataset.test).astype(np.float64) for member in members])
    np.testing.assert_allclose(score_split(ensemble.model, plain_dataset.test), alone.mean(axis=0), atol=1e-6)
    assert ensemble.report["test"]["logloss"] < np.mean([member.report["test"]["logloss"] for member in members])
    assert [one["valid"] for one in ensemble.report["training"]["members"]] == [one.report["valid"] for one in members]


def test_an_ensemble_is_one_run_folder_like_any_other(runs, plain_dataset) -> None:
    ensemble, members = runs
    weights = load_file(ensemble.path / "model.safetensors")
    for i, member in enumerate(members):
        for name, tensor in member.model.state_dict().items():
            assert torch.equal(weights[f"member.{i}.{name}"], tensor)
    names = {file.name for file in members[0].path.iterdir()} - {"checkpoint"}
    assert {file.name for file in ensemble.path.iterdir()} == names
    assert cr.evaluate(ensemble, plain_dataset) == ensemble.report["test"]
    assert write_report(ensemble.path).is_file()


def test_explanations_of_an_ensemble_are_the_means_of_its_members(runs, plain_dataset) -> None:
    ensemble, members = runs
    alone = [measure_crosses(member.model, plain_dataset.valid) for member in members]
    for cross, *same in zip(measure_crosses(ensemble.model, plain_dataset.valid), *alone, strict=True):
        assert cross.strength == pytest.approx(np.mean([one.strength for one in same]))
        assert cross.norms == pytest.approx(np.mean([one.norms for one in same], axis=0))
    row = {"user": "0007", "item": "0003"}
    found, parts = explain_row(ensemble, row), [explain_row(member, row) for member in members]
    assert found.method == "exact" and found.difference == pytest.approx(0, abs=1e-3)
    assert found.logit == pytest.approx(np.mean([one.logit for one in parts]), abs=1e-5)
    (pair,) = (one for one in found.pairs if one["left"] != one["right"])
    expected = [one["contribution"] for part in parts for one in part.pairs if one["left"] != one["right"]]
    assert pair["contribution"] == pytest.approx(np.mean(expected), abs=1e-5)


def test_an_interrupted_ensemble_goes_on_where_it_stopped(runs, plain_dataset, tmp_path) -> None:
    seen: list[int] = []

    def stop(step: int, _: object) -> None:
        seen.append(step)
        if len(seen) == 5:  # in the second member, whose first evaluation is kept
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(plain_dataset, tmp_path / "cut", ensemble=3, on_evaluation=stop)
    train(plain_dataset, tmp_path / "cut", ensemble=3, resume=True, on_evaluation=lambda step, _: seen.append(step))
    expected, found = (load_file(tmp_path / name / "model.safetensors") for name in ("ensemble", "cut"))
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert len(seen) == 9


def test_no_two_ensembles_share_a_member(runs, plain_dataset, tmp_path) -> None:
    other = train(plain_dataset, tmp_path / "other", ensemble=3, seed=1)
    assert [one["seed"] for one in other.report["training"]["members"]] == [3, 4, 5]


def test_an_ensemble_of_equal_members_is_one_of_them_and_costs_as_much_as_all() -> None:
    features = [Feature("a", "categorical", 9), Feature("n", "numeric")]
    settings = parse_model_settings({"name": "deepfm", "ensemble": 3})
    model, one = build_model(settings, features), build_model(dataclasses.replace(settings, ensemble=1), features)
    for member in model.members:
        member.load_state_dict(one.state_dict())
    rows = Features(torch.tensor([[3], [5]]), torch.tensor([[0.5], [-1.0]]))
    torch.testing.assert_close(model(rows), one(rows))
    together, alone = model_cost(settings, features), model_cost(dataclasses.replace(settings, ensemble=1), features)
    assert together.flops == 3 * alone.flops
    assert together.parameters == {part: 3 * count for part, count in alone.parameters.items()}
    with pytest.raises(ConfigError, match=r"model\.ensemble must be from 1 to 1,000; got 0"):
        parse_model_settings({"ensemble": 0})
