"""Every switch of the cross layers, in every engine: as autograd moves them, alone and together."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.testing import assert_close

from crossrank.models import build_model, parse_model_settings
from crossrank.runs import Run
from crossrank.training import TrainingSettings, train
from crossrank.training.checkpoint import Position
from crossrank.training.cuda.engine import AutogradSteps, CapturedEngine
from crossrank.training.engines import joint_engine
from crossrank.training.loss import LogLoss
from crossrank.training.processor import ProcessorEngine
from crossrank.training.rule import UpdateRule
from crossrank.training.trainer import take_steps

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"))
SETTINGS = TrainingSettings(
    tables="lazy", batch_size=128, learning_rate=0.01, precision="float32", average_decay=0.9, device="cpu"
)
CROSSES = {
    "separable": {"context": ["user"]},
    "previous": {"source": "previous"},
    "inner": {"inner": "relu"},
    "heads": {"heads": 2, "inner": "relu"},
    "gate": {"gate": "information"},
    "pooled": {"pooled": "first"},
    "pooled each": {"pooled": "each", "gate": "information", "num_networks": 2},
    "all": {"source": "previous", "inner": "tanh", "heads": 2, "gate": "information", "context": ["user"]},
}
every_cross = pytest.mark.parametrize("cross", CROSSES.values(), ids=CROSSES)


def model_of(dataset, cross, seed=0):
    torch.manual_seed(seed)
    values = {"embedding": {"dim": 4}, "structure": "parallel", "cross": cross, "deep": {"sizes": [8]}}
    return build_model(parse_model_settings(values), dataset.features)


def steps_of(engine, steps=20):
    for _ in take_steps(engine, Position(), total_steps=steps, batches_per_epoch=8):
        pass
    return engine


def alone(model, dataset, device=None, seed=7):
    kind, where = (ProcessorEngine, {}) if device is None else (CapturedEngine, {"device": torch.device(device)})
    return steps_of(kind(model, dataset.train, SETTINGS, loss=LogLoss(), rule=UpdateRule(SETTINGS), seed=seed, **where))


def weights_of(member):
    with member.using(averaged=False):
        return {name: tensor.cpu().clone() for name, tensor in member.model.state_dict().items()}


@pytest.mark.parametrize("device", ["cpu", CUDA])
@every_cross
def test_steps_for_a_gpu_are_those_of_autograd(cross, device, plain_dataset) -> None:
    model = model_of(plain_dataset, cross)
    expected = alone(copy.deepcopy(model), plain_dataset)
    got = alone(model, plain_dataset, device)
    assert isinstance(got.steps, AutogradSteps)
    assert_close(weights_of(got), weights_of(expected), rtol=0, atol=2e-5 if device == "cpu" else 5e-4)


@every_cross
def test_models_that_share_a_program_are_those_trained_alone(cross, plain_dataset) -> None:
    models = [model_of(plain_dataset, cross, seed) for seed in range(2)]
    expected = [alone(copy.deepcopy(model), plain_dataset, seed=seed) for seed, model in enumerate(models)]
    engine = joint_engine(models, plain_dataset, [SETTINGS] * 2, seeds=range(2))
    steps_of(engine)
    for member, one in zip(engine.members, expected, strict=True):
        assert_close(weights_of(member), weights_of(one), rtol=0, atol=1e-4)


def test_a_killed_training_of_separable_layers_and_pooled_pairs_resumes_to_the_same_weights(
    dataset, tmp_path, monkeypatch, kill_at_step
) -> None:
    cross = {"context": ["user"], "gate": "information", "pooled": "first"}
    config = {
        "model": {"embedding": {"dim": 4}, "structure": "parallel", "cross": cross, "deep": {"sizes": [8]}},
        "training": {"max_steps": 8, "eval_every": 3, "heads": "distil", "device": "cpu"},
    }
    whole = train(dataset, into=tmp_path / "whole", config=config)
    kill_at_step(6)
    with pytest.raises(KeyboardInterrupt):
        train(dataset, into=tmp_path / "cut", config=config)
    monkeypatch.undo()
    resumed = train(dataset, into=tmp_path / "cut", config=config, resume=True)
    assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("l2", [0.0, 0.01])
def test_training_leaves_the_forbidden_block_at_zero_and_a_reopened_run_too(l2, dataset, tmp_path) -> None:
    config = {
        "model": {"embedding": {"dim": 4}, "cross": {"context": ["user"]}, "deep": {"sizes": [8]}},
        "training": {"max_steps": 12, "l2": l2, "clip_norm": 0.1, "device": "cpu"},
    }
    train(dataset, into=tmp_path / "run", config=config)
    run = Run.open(tmp_path / "run")
    for layer in run.model.cross[0].layers:
        assert not layer.weight[layer.context][:, ~layer.context].any()
        assert layer.weight[~layer.context].all()
    user = range(*run.model.layout["user"].slice.indices(run.model.layout.input_dim))
    assert layer.context.nonzero()[:, 0].tolist() == list(user)
    blocks = {one.features: one.norms for one in run.crosses if "user" in one.features and not one.of_itself}
    assert blocks and all(norms[features.index("user")] == 0 for features, norms in blocks.items())
