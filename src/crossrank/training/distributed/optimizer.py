"""A training step on several processes: one exchange of gradients, then clip and rule as in one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from crossrank.training.distributed.sharded_tables import RowLookup
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
        own = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self.named = own | tables
        # Weights lie one after the other, so that all are moved and averaged as one; tables may have their own rate
        weights = torch.cat([p.detach().flatten() for p in self.named.values()])
        sizes = [sum(p.numel() for p in kind.values()) for kind in (own, tables)]
        flat = [nn.Parameter(part) for part in torch.split(weights, sizes)]
        self._hold(HeldTables(lookups), dict(zip(("own", "tables"), flat, strict=True)), flat[1:])
        # Exchanged as one: the gradients of all these, the sum of the squares of the rows' gradients, and the loss
        self.exchanged = torch.zeros(len(weights) + 2, dtype=weights.dtype, device=weights.device)
        self.gradient, self.squares, self.loss = torch.split(self.exchanged, [len(weights), 1, 1])
        self.places: dict[nn.Parameter, tuple[int, slice]] = {}  # of each: in which of the two it lies, and where
        gradients = torch.split(self.gradient, sizes)
        for number, (kind, whole, gradient) in enumerate(zip((own, tables), flat, gradients, strict=True)):
            whole.grad, start = gradient, 0
            for parameter in kind.values():
                place = slice(start, start + parameter.numel())
                parameter.data, parameter.grad = (x[place].view_as(parameter) for x in (whole.data, gradient))
                self.places[parameter], start = (number, place), place.stop

    def step(self, loss: Tensor, part: Tensor | float = 0.0) -> None:
        """As in one process, by the mean of all gradients; the parts of all processes become ``self.loss``, (1,)."""
        self.exchanged.zero_()
        self.loss += part
        loss.backward()  # type: ignore[no-untyped-call]
        touched = self._touched()
        if touched:
            self.squares += nn.utils.get_total_norm([one.gradient for one in touched]).square()
        self.world.sum(self.exchanged)
        self.gradient /= self.world.size
        self._move(touched)

    def norm(self, dense: list[Tensor], rows: list[Tensor]) -> Tensor:
        """||g|| over all processes: each has the rest in whole, and rows that nobody else has."""
        squares: Tensor = torch.linalg.vector_norm(self.gradient).square() + self.squares[0]
        return squares.sqrt()

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
            number, place = self.places[holder]
            adam = self.adam.state[self.parameters[number]]
            whole = (adam["exp_avg"], adam["exp_avg_sq"], *self.averages[number : number + 1])
            weight, state = holder.detach(), tuple(part[place].view_as(holder) for part in whole)
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
