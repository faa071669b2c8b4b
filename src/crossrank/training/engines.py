"""Which engine makes the steps of a training."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from crossrank.data import EncodedDataset
from crossrank.errors import ConfigError
from crossrank.models import Model
from crossrank.training.cuda.engine import CapturedEngine
from crossrank.training.cuda.many import JointEngine, can_share_a_program
from crossrank.training.device import choose_device
from crossrank.training.engine import Engine
from crossrank.training.growing import GrowingEngine, OneModel, phases_of
from crossrank.training.heads import with_heads
from crossrank.training.processor import ProcessorEngine
from crossrank.training.profile import NoClock, StepClock
from crossrank.training.rule import UpdateRule
from crossrank.training.settings import TrainingSettings


def make_engine(
    model: Model, dataset: EncodedDataset, settings: TrainingSettings, *, seed: int, clock: StepClock | None = None
) -> Engine:
    """What makes the steps of a model: a GPU, or a processor."""
    device = _device(model, settings)
    settings, train = settings.for_model(model, device.type), dataset.train
    loss = with_heads(settings.find_loss(dataset.schema.label), settings.heads, model)
    kind = CapturedEngine if device.type == "cuda" else ProcessorEngine
    clock = clock or NoClock()

    def make(settings: TrainingSettings) -> OneModel:
        rule = UpdateRule(settings, total_steps=settings.total_steps(train.num_batches(settings.batch_size)))
        return kind(model, train, settings, loss=loss, rule=rule, seed=seed, device=device, clock=clock)

    if settings.ramp and loss.needs_groups:
        raise ConfigError(
            "training.ramp divides batches, and this loss compares rows of a group, which a batch has whole; got "
            f"ramp={settings.ramp}.",
            hint="Leave training.ramp out.",
        )
    phases = phases_of(settings, len(train))
    return make(settings) if len(phases) == 1 else GrowingEngine(phases, make)


def joint_engine(
    models: Sequence[Model], dataset: EncodedDataset, settings: Sequence[TrainingSettings], *, seeds: Sequence[int]
) -> JointEngine | None:
    """The joint steps of models of one shape, or None where they have to be trained one after the other.

    Their settings are equal but for the learning rate.
    """
    device = _device(models[0], settings[0])
    shared = settings[0].for_model(models[0], device.type)
    rates = [one.learning_rate for one in settings]
    loss = with_heads(shared.find_loss(dataset.schema.label), shared.heads, models[0])
    alone = loss.needs_groups or models[0].num_outputs > 1 or shared.ramp > 0
    if alone or not can_share_a_program(models[0], dataset.train, shared, device):
        return None
    total = shared.total_steps(dataset.train.num_batches(shared.batch_size))
    rule = UpdateRule(shared, total_steps=total, learning_rates=rates)
    return JointEngine(models, dataset.train, shared, loss=loss, rule=rule, seeds=seeds, device=device)


def _device(model: Model, settings: TrainingSettings) -> torch.device:
    """Where steps are made; those of several logits on a processor, since the programs for a GPU are of one logit."""
    if model.num_outputs == 1:
        return choose_device(settings.device)
    if settings.device == "cuda":
        raise ConfigError(
            "A label with several classes or tasks is trained on a processor; got training.device=cuda for "
            f"{model.num_outputs} logits.",
            hint="Set training.device=cpu.",
        )
    return torch.device("cpu")
