"""What the training loop talks to, whatever makes the steps: a processor, a GPU, many models as one program.

An engine has one member for each model. An engine of one model is its own member.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from crossrank.data import Split
from crossrank.models import Model
from crossrank.training.loss import Loss
from crossrank.training.profile import NoClock, StepClock
from crossrank.training.rule import UpdateRule
from crossrank.training.settings import TrainingSettings

CPU = torch.device("cpu")


class Member(Protocol):
    """One of the models that an engine trains."""

    model: Model

    def using(self, *, averaged: bool) -> AbstractContextManager[None]:
        """Inside, the model has its averaged or its raw weights, and any change to them is undone at the end."""

    def placed(self, split: Split) -> Split:
        """The split, with batches where the model is."""

    def drop(self, factor: float) -> None:
        """Multiply the learning rate; to be called right after :meth:`using`, when every row is up to date."""

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed training needs, under names that do not depend on the engine."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take back what :meth:`state` gave, here or in another engine."""

    def close(self) -> None:
        """Leave an ordinary model on the processor."""


class Engine(Protocol):
    """Makes the steps."""

    @property
    def members(self) -> Sequence[Member]: ...

    def batches(self, epoch: int, start_batch: int) -> Iterator[Sized]:
        """What :meth:`step` is to be called with, one after the other; a length is a number of rows."""

    def step(self, batch: Any) -> Tensor:
        """One step of every member; returns the loss of each on its rows (members,), which the next step overwrites."""


@dataclasses.dataclass(eq=False)
class SingleEngine:
    """An engine of one model, which is its own member; an optimiser has the weights.

    Attributes:
        model: trained in place.
        split: the training rows.
        settings: of the training.
        loss: what is made small.
        rule: of the update.
        seed: of the order of the rows.
        device: where the steps are made.
        clock: told when each part of a step ends.
    """

    model: Model
    split: Split
    settings: TrainingSettings
    _: dataclasses.KW_ONLY
    loss: Loss
    rule: UpdateRule
    seed: int
    device: torch.device = CPU
    clock: StepClock = dataclasses.field(default_factory=NoClock)
    optimizer: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Make the optimiser."""

    @property
    def members(self) -> Sequence[Member]:
        return [self]

    def batches(self, epoch: int, start_batch: int) -> Iterator[Any]:
        size, by_group = self.settings.batch_size, self.loss.needs_groups
        return self.split.batches(size, seed=self.seed, epoch=epoch, start_batch=start_batch, by_group=by_group)

    def using(self, *, averaged: bool) -> AbstractContextManager[None]:
        held: AbstractContextManager[None] = self.optimizer.using(averaged=averaged)
        return held

    def placed(self, split: Split) -> Split:
        return split

    def drop(self, factor: float) -> None:
        self.optimizer.rule.drop(factor)

    def state(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.optimizer.state()
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.optimizer.restore(state)

    def close(self) -> None:
        self.optimizer.close()
