"""Steps that grow: the first batches of a training are learned in several steps each.

Large batches make few steps. With ``training.ramp`` the first epoch begins with steps of about 4,096 rows, sixteen to a
batch of 65,536; then come eight to a batch, four and two, each over as many batches, and then one. Steps of 1/p of a
batch have p^-0.5 times the learning rate.

For each size there is an engine of its own, which takes over what the one before has learned. So it is the same on
every device, and positions, evaluations and checkpoints count whole batches.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice, pairwise
from typing import Any

import torch
from torch import Tensor

from crossrank.data import Split
from crossrank.models import Model
from crossrank.training.cuda.engine import CapturedEngine
from crossrank.training.engine import Member
from crossrank.training.processor import ProcessorEngine
from crossrank.training.settings import TrainingSettings

OneModel = CapturedEngine | ProcessorEngine
FIRST_ROWS = 4096  # of the first steps, or a little more
POWER = 0.5  # of the learning rate by the rows of a step


@dataclasses.dataclass(frozen=True)
class Phase:
    """Batches with the same number of steps.

    Attributes:
        parts: steps in a batch.
        first: the first batch.
        settings: of the training, for its steps.
    """

    parts: int
    first: int
    settings: TrainingSettings


def phases_of(settings: TrainingSettings, num_rows: int) -> list[Phase]:
    """The phases of a training on so many rows; only one where its batches do not grow.

    Example:
        >>> settings = TrainingSettings(batch_size=16_384, ramp=0.5, learning_rate=0.01)
        >>> [(one.parts, one.first, one.settings.batch_size) for one in phases_of(settings, 16 * 16_384)]
        [(4, 0, 4096), (2, 4, 8192), (1, 8, 16384)]
    """
    size, most = settings.batch_size, 1
    while size % (2 * most) == 0 and size >= 2 * most * FIRST_ROWS:
        most *= 2
    parts = [2**power for power in reversed(range(1, most.bit_length()))]
    grown = int(settings.ramp * (num_rows // size))  # in whole batches of the first epoch
    starts = [math.ceil(grown * number / max(len(parts), 1)) for number in range(len(parts) + 1)]
    return [
        Phase(count, first, _scaled(settings, count))
        for count, first, stop in zip([*parts, 1], starts, [*starts[1:], grown + 1], strict=True)
        if first < stop
    ]


def _scaled(settings: TrainingSettings, parts: int) -> TrainingSettings:
    factor, own = parts**-POWER, settings.table_learning_rate
    return dataclasses.replace(
        settings,
        batch_size=settings.batch_size // parts,
        learning_rate=settings.learning_rate * factor,
        table_learning_rate=None if own is None else own * factor,
    )


@dataclasses.dataclass(frozen=True)
class Steps:
    """The steps of a batch, one after the other."""

    each: Iterator[Any]
    num_rows: int

    def __len__(self) -> int:
        return self.num_rows


class GrowingEngine:
    """An :class:`~crossrank.training.engine.Engine` of one model, which is its own member.

    Args:
        phases: of the training.
        make: an engine with the settings of a phase.
    """

    def __init__(self, phases: Sequence[Phase], make: Callable[[TrainingSettings], OneModel]) -> None:
        self.phases, self.make, self.dropped = phases, make, 1.0
        self.phase = phases[0]
        self.engine = make(self.phase.settings)
        self.model: Model = self.engine.model  # the same in all phases

    @property
    def members(self) -> Sequence[Member]:
        return [self]

    def batches(self, epoch: int, start_batch: int) -> Iterator[Any]:
        if epoch == 0:
            for phase, after in pairwise(self.phases):
                first, size = max(start_batch, phase.first), phase.parts * phase.settings.batch_size
                if first < after.first:
                    self._enter(phase)
                    steps = self.engine.batches(0, first * phase.parts)
                    yield from (Steps(islice(steps, phase.parts), size) for _ in range(first, after.first))
                    start_batch = after.first
        self._enter(self.phases[-1])
        yield from self.engine.batches(epoch, start_batch)

    def _enter(self, phase: Phase) -> None:
        """Go on with the steps of a phase."""
        if phase is self.phase:
            return
        with self.engine.using(averaged=False):  # every row is up to date then
            state = {name: tensor.clone() for name, tensor in self.engine.state().items()}
        self.engine.close()
        self.phase, self.engine = phase, self.make(phase.settings)
        self.engine.restore(state)
        if self.dropped != 1:
            self.engine.drop(self.dropped)

    def step(self, batch: Any) -> Tensor:
        if not isinstance(batch, Steps):
            return self.engine.step(batch)
        return torch.stack([self.engine.step(one).clone() for one in batch.each]).mean(dim=0)

    def using(self, *, averaged: bool) -> AbstractContextManager[None]:
        return self.engine.using(averaged=averaged)

    def placed(self, split: Split) -> Split:
        return self.engine.placed(split)

    def drop(self, factor: float) -> None:
        self.dropped *= factor
        self.engine.drop(factor)

    def state(self) -> dict[str, Tensor]:
        return self.engine.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.engine.restore(state)

    def close(self) -> None:
        self.engine.close()
