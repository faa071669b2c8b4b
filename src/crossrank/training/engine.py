"""What the training loop talks to, whatever makes the steps: a processor, a GPU, many models as one program.

An engine has one member for each model. An engine of one model is its own member.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from crossrank.data import Split
from crossrank.models import Model


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
