"""FinalMLP and the models after it in every engine: their norms and masks keep nothing between steps."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.testing import assert_close

from crossrank.models import build_model, parse_model_settings
from crossrank.training import TrainingSettings, train
from crossrank.training.checkpoint import Position
from crossrank.training.cuda.engine import CapturedEngine
from crossrank.training.engines import joint_engine, make_engine
from crossrank.training.loss import LogLoss
from crossrank.training.rule import UpdateRule
from crossrank.training.trainer import take_steps

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"))
SMALL = {
    "final-mlp": {"first_context": ["user"], "gate_sizes": [3], "deep": {"sizes": [8]}, "second": {"sizes": [6]}},
    "final-net": {"deep": {"sizes": [8, 6]}},
    "mask-net": {"mask": {"sizes": [6, 4]}, "deep": {"sizes": [8]}},
    "fcn": {"exponential": {"num_layers": 2}, "linear": {"num_layers": 2}},
    "qnn-alpha": {"cross": {"num_layers": 2, "num_heads": 2}},
    "edcn": {},
    "wukong": {"stack": {"num_fm": 3, "num_linear": 2, "rank": 2, "sizes": [6]}, "deep": {"sizes": [8]}},
}
SETTINGS = {"tables": "lazy", "batch_size": 128, "learning_rate": 0.01, "precision": "float32", "device": "cpu"}


def model_of(name, dataset, seed):
    torch.manual_seed(seed)
    return build_model(parse_model_settings({"name": name, "embedding": {"dim": 4}, **SMALL[name]}), dataset.features)


def steps_of(engine):
    for _ in take_steps(engine, Position(), total_steps=12, batches_per_epoch=8):
        pass
    return engine


def weights_of(member):
    with member.using(averaged=False):
        return {name: tensor.cpu().clone() for name, tensor in member.model.state_dict().items()}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_every_engine_makes_the_same_steps(name, device, plain_dataset):
    settings, dataset = TrainingSettings(**SETTINGS), plain_dataset
    models = [model_of(name, dataset, seed) for seed in range(2)]
    alone = [steps_of(make_engine(copy.deepcopy(one), dataset, settings, seed=i)) for i, one in enumerate(models)]
    near = {"rtol": 0, "atol": 1e-3}  # Adam's first steps amplify the rounding of small gradients
    captured = CapturedEngine(
        copy.deepcopy(models[0]), dataset.train, settings, loss=LogLoss(), rule=UpdateRule(settings), seed=0,
        device=torch.device(device),
    )  # fmt: skip
    assert_close(weights_of(steps_of(captured)), weights_of(alone[0]), **near)
    together = joint_engine(models, dataset, [settings] * 2, seeds=range(2))
    for member, one in zip(steps_of(together).members, alone, strict=True):
        assert_close(weights_of(member), weights_of(one), **near)


@pytest.mark.parametrize(
    ("heads", "model"),
    [
        ("weighted", {"name": "fcn", "exponential": {"dropout": 0.1}, "linear": {"dropout": 0.2}}),
        ("distil", {"name": "qnn-alpha", "cross": {"num_layers": 2, "dropout": 0.1}}),
        ("distil", {"name": "final-net", "deep": {"sizes": [8], "dropout": 0.1}}),
        ("none", {"name": "edcn", "dropout": 0.1}),
    ],
)
def test_a_killed_training_resumes_to_the_same_weights(
    heads, model, dataset, tmp_path, monkeypatch, kill_at_step
) -> None:
    training = {"batch_size": 128, "epochs": 2, "learning_rate": 0.01, "eval_every": 6, "patience": 0, "heads": heads}
    training["device"] = "cpu"  # where a step can be killed
    config = {"model": {**model, "embedding": {"dim": 4}}, "training": training}
    whole = train(dataset, into=tmp_path / "whole", config=config)
    kill_at_step(9)
    with pytest.raises(KeyboardInterrupt):
        train(dataset, into=tmp_path / "cut", config=config)
    monkeypatch.undo()
    resumed = train(dataset, into=tmp_path / "cut", config=config, resume=True).model.state_dict()
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.model.state_dict().items())
