"""The steps written for a GPU against the reference path: on a processor uncaptured, on a GPU as a graph."""

from __future__ import annotations

import copy
import dataclasses
import itertools

import numpy as np
import pytest
import torch

from crossrank.data import Batch, EncodedRows, Split
from crossrank.data.rows import LabeledRows, offsets_of
from crossrank.models import build_model, parse_model_settings
from crossrank.schema import Feature
from crossrank.training import TrainingSettings
from crossrank.training.cuda.data import ResidentRows, SentRows
from crossrank.training.cuda.dcn import DCNSteps
from crossrank.training.cuda.engine import AutogradSteps, CapturedEngine
from crossrank.training.cuda.many import JointEngine, can_share_a_program
from crossrank.training.loss import LogLoss, penalty
from crossrank.training.optimizer import Optimizer
from crossrank.training.rule import UpdateRule

CUDA = torch.cuda.is_available()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not CUDA, reason="there is no GPU here"))]
FEATURES = [
    *(Feature(f"c{i}", "categorical", size) for i, size in enumerate([30, 4, 11])),
    *(Feature(f"n{i}", "numeric") for i in range(2)),
]
SHAPES = {
    "stacked": {"deep": {"sizes": [13, 6]}},
    "parallel": {"structure": "parallel", "deep": {"sizes": [9]}},
    "cross-only": {"structure": "cross-only", "cross": {"num_layers": 3}},
    "two widths": {"embedding": {"dim": 4, "dims": {"c1": 7}}, "deep": {"sizes": [8]}},
    "no deep layers": {"deep": {"sizes": []}},
    "low rank": {"cross": {"layer": "low_rank", "rank": 3}, "deep": {"sizes": [8]}},
    "deepfm": {"name": "deepfm", "deep": {"sizes": [8]}},
    "wide-deep": {"name": "wide-deep", "deep": {"sizes": [8]}},
}


def rows(count: int, *, weighted: bool = False, bags: bool = False, rare: bool = False) -> Split:
    draw = np.random.default_rng(0)
    ids = np.stack([draw.integers(0, size, count) for size in (30, 4, 11)], axis=1).astype(np.uint32)
    if rare:  # most values of the first feature come once in an epoch
        ids[: count - 20, 0] = 0
    lengths = draw.integers(0, 4, count)
    bag = ((draw.integers(0, 6, lengths.sum()).astype(np.uint32), offsets_of(lengths)),) if bags else ()
    labels = (draw.random(count) < 0.2 + 0.5 * (ids[:, 1] == ids[:, 2] % 4)).astype(np.float32)
    weights = draw.random(count).astype(np.float32) if weighted else None
    return Split(LabeledRows(EncodedRows(ids, draw.normal(size=(count, 2)).astype(np.float32), bag), labels, weights))


def model_of(shape: dict, features=FEATURES):
    torch.manual_seed(0)
    settings = parse_model_settings({"embedding": {"dim": 4}, **shape})
    return build_model(settings, features)


def by_reference(model, split: Split, settings: TrainingSettings, steps: int) -> tuple[Optimizer, list[float]]:
    """The loop over batches that a processor runs."""
    optimizer, losses = Optimizer(model, settings), []
    endless = (
        batch for epoch in itertools.count() for batch in split.batches(settings.batch_size, seed=7, epoch=epoch)
    )
    for batch in itertools.islice(endless, steps):
        loss = LogLoss()(model(batch.features), batch.labels, batch.weights)
        optimizer.step(loss + penalty(model, settings.l2))
        losses.append(loss.item())
    return optimizer, losses


def on_device(training: CapturedEngine, steps: int, *, epoch: int = 0, batch: int = 0) -> list[float]:
    losses: list[float] = []
    while len(losses) < steps:
        for step in training.batches(epoch, batch):
            losses.append(training.step(step).item())
            if len(losses) == steps:
                break
        epoch, batch = epoch + 1, 0
    return losses


def same_weights(left, left_optimizer, right, right_optimizer, atol: float) -> None:
    for averaged in (False, True):
        with left_optimizer.using(averaged=averaged), right_optimizer.using(averaged=averaged):
            other = right.state_dict()
            for name, tensor in left.state_dict().items():
                torch.testing.assert_close(tensor.cpu(), other[name].cpu(), rtol=0, atol=atol)


def start(model, split: Split, settings: TrainingSettings, device: str = "cpu") -> CapturedEngine:
    return engine_of(model, split, settings, seed=7, device=torch.device(device))


def engine_of(model, split: Split, settings: TrainingSettings, **where) -> CapturedEngine:
    return CapturedEngine(model, split, settings, loss=LogLoss(), rule=UpdateRule(settings), **where)


def joint_engine(models, split: Split, settings: TrainingSettings, *, rates=None, **where) -> JointEngine:
    rule = UpdateRule(settings, learning_rates=rates or [settings.learning_rate] * len(models))
    return JointEngine(models, split, settings, loss=LogLoss(), rule=rule, **where)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", SHAPES)
def test_fifty_steps_equal_the_reference(shape, device) -> None:
    """8 batches an epoch, the last of them short, so every epoch ends with a padded one."""
    split = rows(250, weighted=shape == "stacked")
    settings = TrainingSettings(
        tables="lazy",
        batch_size=32,
        learning_rate=0.01,
        clip_norm=0.5,
        l2=1e-3,
        precision="float32",
        average_decay=0.95,
    )
    model = model_of(SHAPES[shape])
    other = copy.deepcopy(model)
    optimizer, expected = by_reference(model, split, settings, 50)
    training = start(other, split, settings, device)
    written_out = shape in ("stacked", "parallel", "cross-only", "two widths", "no deep layers")
    assert isinstance(training.steps, DCNSteps if written_out else AutogradSteps)
    losses = on_device(training, 50)
    np.testing.assert_allclose(losses, expected, atol=2e-4)
    same_weights(model, optimizer, other, training.optimizer, 5e-4)
    training.close()
    assert {p.device.type for p in other.parameters()} == {"cpu"}
    assert all(p.is_contiguous() for p in other.parameters())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tables", ["dense", "lazy"])
def test_bags_and_dense_tables_equal_the_reference(tables, device) -> None:
    split = rows(250, bags=tables == "lazy")
    features = [*FEATURES[:3], *([Feature("tags", "multivalent", 6)] if tables == "lazy" else []), *FEATURES[3:]]
    settings = TrainingSettings(batch_size=32, learning_rate=0.01, tables=tables, precision="float32")
    model = model_of({"deep": {"sizes": [8]}}, features)
    other = copy.deepcopy(model)
    optimizer, expected = by_reference(model, split, settings, 20)
    training = start(other, split, settings, device)
    np.testing.assert_allclose(on_device(training, 20), expected, atol=2e-4)
    same_weights(model, optimizer, other, training.optimizer, 5e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_padding_stays_zero(device) -> None:
    split, settings = rows(100), TrainingSettings(tables="lazy", batch_size=32, learning_rate=0.01, precision="float32")
    training = start(model_of(SHAPES["stacked"]), split, settings, device)
    on_device(training, 12)
    flat = training.optimizer.flat
    padding = flat.weight.clone()
    for part in flat.parts(padding).values():
        part.zero_()
    assert not padding.any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", ["stacked", "low rank"])
def test_a_state_goes_from_a_device_to_the_reference_and_back(shape, device) -> None:
    split, settings = rows(250), TrainingSettings(tables="lazy", batch_size=32, learning_rate=0.01, precision="float32")
    model, other = model_of(SHAPES[shape]), model_of(SHAPES[shape])
    optimizer, _ = by_reference(model, split, settings, 11)
    training = start(other, split, settings, device)
    training.optimizer.restore({name: tensor.clone() for name, tensor in optimizer.state().items()})
    on_device(training, 9, epoch=1, batch=3)
    back = model_of(SHAPES[shape])
    last = Optimizer(back, settings)
    last.restore({name: tensor.cpu().clone() for name, tensor in training.optimizer.state().items()})
    through = model_of(SHAPES[shape])
    expected, _ = by_reference(through, split, settings, 20)
    same_weights(back, last, through, expected, 1e-4)
    assert last.state().keys() == expected.state().keys()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [ResidentRows, SentRows])
def test_rows_come_in_the_order_of_the_split(kind, device) -> None:
    split = rows(100, weighted=True)
    source = kind(split, 32, seed=3, device=torch.device(device))
    for epoch, first in ((0, 0), (1, 2)):
        expected = list(split.batches(32, seed=3, epoch=epoch, start_batch=first))
        for step, batch in zip(source.batches(epoch, first), expected, strict=True):
            taken = source.take()
            size = len(step)
            assert size == len(batch)
            assert torch.equal(taken.ids[:size].cpu(), batch.features.categorical)
            assert torch.equal(taken.numeric[:size].cpu(), batch.features.numeric)
            assert torch.equal(taken.labels[:size].cpu(), batch.labels)
            assert torch.equal(taken.weights[:size].cpu(), batch.weights)
            assert not taken.weights[size:].any()
    source.close()


def test_bfloat16_stays_near_the_reference() -> None:
    split, settings = (
        rows(250),
        TrainingSettings(tables="lazy", batch_size=32, learning_rate=0.01, precision="bfloat16"),
    )
    _, expected = by_reference(model_of(SHAPES["stacked"]), split, settings, 40)
    losses = on_device(start(model_of(SHAPES["stacked"]), split, settings), 40)
    assert abs(np.mean(losses[-8:]) - np.mean(expected[-8:])) < 0.01
    assert isinstance(next(iter(split.batches(4))), Batch)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rates", [(0.01, 0.01, 0.01), (0.002, 0.02, 0.01)], ids=["one rate", "a rate each"])
@pytest.mark.parametrize("shape", ["stacked", "low rank"])
def test_models_trained_together_equal_models_trained_alone(shape, rates, device) -> None:
    split = rows(400, weighted=True, rare=True)
    settings = TrainingSettings(
        tables="lazy", batch_size=16, learning_rate=0.01, clip_norm=0.05, precision="float32", average_decay=0.95
    )
    models = []
    for seed in range(3):
        torch.manual_seed(seed)
        models.append(build_model(parse_model_settings({"embedding": {"dim": 4}, **SHAPES[shape]}), FEATURES))
    alone = copy.deepcopy(models)
    where = torch.device(device)
    assert can_share_a_program(models[0], split, settings, where)
    many = joint_engine(models, split, settings, rates=rates, seeds=[5, 6, 7], device=where)
    losses = []
    for epoch in range(2):
        for batch in many.batches(epoch, 0):
            losses.append(many.step(batch).tolist())
    assert int(many.count - many.table.last[many.table.last > 0].min()) > 20  # some rows were left alone for long
    for number, model in enumerate(alone):
        own = dataclasses.replace(settings, learning_rate=rates[number])
        training = engine_of(model, split, own, seed=5 + number, device=where)
        expected = on_device(training, 50)
        np.testing.assert_allclose([line[number] for line in losses], expected, atol=2e-4)
        part = many.members[number]
        same_weights(part.model, part, model, training.optimizer, 5e-4)
        state = training.optimizer.state()
        assert part.state().keys() == state.keys() - {"random.cuda"}
        torch.testing.assert_close(
            part.state()["state.embedding.weight.0"], state["state.embedding.weight.0"], atol=1e-4, rtol=0
        )
    many.close()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wild", [1e30, 1e8, 1e4])
@pytest.mark.parametrize("shape", ["stacked", "low rank"])
def test_a_model_that_diverges_leaves_the_others_as_they_are(shape, wild, device) -> None:
    split, where = rows(250), torch.device(device)
    settings = TrainingSettings(tables="lazy", batch_size=32, precision="float32")
    ends = []
    for rate in (wild, 0.02):
        models = [model_of(SHAPES[shape]) for _ in range(3)]
        many = joint_engine(models, split, settings, rates=[0.01, rate, 0.03], seeds=[5, 6, 7], device=where)
        for epoch in range(2):
            for batch in many.batches(epoch, 0):
                losses = many.step(batch).clone()
        ends.append([losses, many.flat.weight.clone(), many.table.weight.view(3, -1).clone()])
        many.close()
    assert not ends[0][0][1] < 10
    for got, expected in zip(*ends, strict=True):
        torch.testing.assert_close(got[::2], expected[::2], rtol=0, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "dropout", [{"embedding": {"dim": 4, "dropout": 0.5}}, {"deep": {"sizes": [8], "dropout": 0.5}}]
)
def test_together_each_model_and_each_step_drops_its_own(dropout, device) -> None:
    split, where = rows(64), torch.device(device)
    settings = TrainingSettings(tables="lazy", batch_size=64, learning_rate=1e-9, precision="float32")
    models = [model_of(dropout) for _ in range(2)]
    assert can_share_a_program(models[0], split, settings, where)
    many = joint_engine(models, split, settings, seeds=[5, 5], device=where)
    losses = []
    for epoch in range(8):  # the same rows each time; only what is dropped differs
        for batch in many.batches(epoch, 0):
            losses += many.step(batch).tolist()
    assert len(set(losses)) == 16


def test_models_with_bags_or_several_tables_are_trained_alone() -> None:
    split, settings, cpu = rows(20), TrainingSettings(tables="lazy"), torch.device("cpu")
    assert can_share_a_program(model_of({}), split, settings, cpu)
    assert not can_share_a_program(model_of(SHAPES["two widths"]), split, settings, cpu)
    assert not can_share_a_program(model_of(SHAPES["deepfm"]), split, settings, cpu)
