"""A training step on several processes: the gradient is averaged by then, clip and rule are those of one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from crossrank.training.distributed.tables import RowLookup
from crossrank.training.distributed.world import World
from crossrank.training.lazy import LazyTable, LazyTables
from crossrank.training.optimizer import Optimizer
from crossrank.training.profile import NoClock
from crossrank.training.rule import UpdateRule
from crossrank.training.settings import TrainingSettings


class DistributedOptimizer(Optimizer):
    """Applies steps to a network, and to the rows of its tables that lie here.

    Args:
        network: its parameters are none of the tables'.
        lookups: where those are.
        settings: learning rate, clip, average.
        rule: of the update.
        world: the processes.
    """

    def __init__(
        self,
        network: nn.Module,
        lookups: Sequence[RowLookup],
        settings: TrainingSettings,
        *,
        rule: UpdateRule,
        world: World,
    ) -> None:
        self.settings, self.rule, self.clock, self.world = settings, rule, NoClock(), world
        tables = {f"table.{i}.{n}": weight for i, one in enumerate(lookups) for n, weight in enumerate(one.weights)}
        dense = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self._hold(HeldTables(lookups), dense | tables, list(tables.values()))

    def step_together(self, loss: Tensor, part: Tensor) -> Tensor:
        """Make a step; returns the sum of all processes' parts of what is to be told of it: () -> ()."""
        self.part = part.double()
        self.step(loss)
        return (self.part if self.settings.clip_norm else self.world.sum(self.part)).to(part.dtype)

    def norm(self, dense: list[Tensor], rows: list[Tensor]) -> Tensor:
        """||g|| over all processes: each has the rest in whole, and rows that nobody else has."""
        here = nn.utils.get_total_norm(rows).double().square() if rows else torch.zeros_like(self.part)
        sums = self.world.summing(torch.stack([here, self.part]))
        whole = nn.utils.get_total_norm(dense).double().square() if dense else 0.0
        there, self.part = sums()
        return (whole + there).sqrt()

    def begin(self) -> None:
        """Make Adam's state of every weight, which it makes itself only with the first gradient."""
        for parameter in self.parameters:
            if not self.adam.state[parameter]:
                zeros = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
                self.adam.state[parameter] = {"step": torch.zeros((), device=parameter.device), **zeros}

    def parts(self, holder: nn.Parameter | LazyTable) -> dict[str, Tensor]:
        """What a resumed training needs of some weights, as it is trained, under the names of checkpoints."""
        if isinstance(holder, LazyTable):
            weight, state = holder.weight, torch.split(holder.state, holder.width, dim=1)
        else:
            weight, adam = holder.detach(), self.adam.state[holder]
            place = next(i for i, parameter in enumerate(self.parameters) if parameter is holder)
            state = (adam["exp_avg"], adam["exp_avg_sq"], *self.averages[place : place + 1])
        return dict(zip(("weight", "exp_avg", "exp_avg_sq", "average"), (weight, *state), strict=False))

    def go_on_from(self, steps: int) -> None:
        """All weights and their state belong to this step."""
        self.steps = steps
        for parameter in self.parameters:
            self.adam.state[parameter]["step"].fill_(steps)
        for table in self.lazy.tables:
            table.last.fill_(steps)


class HeldTables(LazyTables[Any]):
    """The lazy tables that lie here."""

    def __init__(self, lookups: Sequence[RowLookup]) -> None:
        self.layers = {}
        self.embeddings = {str(i): lookup for i, lookup in enumerate(lookups) if not lookup.replicated}
