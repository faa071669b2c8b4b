"""Adam, clip and average for an embedding table, on the rows that a step reads.

A step of B rows with F features reads at most B F rows of a table of millions. Here nothing else is read or written,
and the result is that of the textbook's Adam, which moves every row at every step:

- a row that is read is first brought to what it would be by now, in closed form (:mod:`crossrank.training.idle`);
- its gradient is the sum over its occurrences in the batch;
- Adam's m, v, the weight and its average are then written back, with the number of the step.

Cost: proportional to the number of distinct rows in the batch, whatever the size of the table.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from crossrank.nn import FeatureEmbedding
from crossrank.training.rule import Moved, Rate, UpdateRule
from crossrank.training.table_rows import Spread, put, sums_at

ROWS_AT_ONCE = 2**18  # brought up to date together: what that needs besides the table must stay small


def num_parts(decay: float) -> int:
    """m and v, and the average where there is one."""
    return 3 if decay else 2


@dataclasses.dataclass
class Touched:
    """Distinct rows of a table, as they are now; changed here, then written back.

    Shape: rows (U,), weight (U, width), a leaf of the graph, state (U, parts · width).
    """

    table: LazyTable
    rows: Tensor
    weight: Tensor
    state: Tensor

    @property
    def gradient(self) -> Tensor:
        """What came back to the rows, the sum over their occurrences: (U, width)."""
        return torch.zeros_like(self.weight) if self.weight.grad is None else self.weight.grad


class LazyTable:
    """One (rows, width) table with its optimiser state.

    Args:
        weight: the table; changed in place.
        rule: of the update.
        state, last: where the state is to lie: (rows, parts · width) and (rows,).
        ordered: take rows in the order of the table, so that memory is read and written in passing. The norm of all
            gradients then rounds otherwise, so one process, whose bits stay what they were, does not.
    """

    def __init__(
        self,
        weight: Tensor,
        rule: UpdateRule,
        *,
        state: Tensor | None = None,
        last: Tensor | None = None,
        ordered: bool = False,
    ) -> None:
        self.weight, self.rule, self.ordered = weight.detach(), rule, ordered
        num_rows, self.width = weight.shape
        # m, v and the average of a row lie side by side
        self.state = weight.new_zeros(num_rows, num_parts(rule.decay) * self.width) if state is None else state
        if rule.decay:
            self.average.copy_(self.weight)
        # the step a row belongs to
        self.last = torch.zeros(num_rows, dtype=torch.int64, device=weight.device) if last is None else last
        self.owner = torch.zeros(num_rows if weight.device.type == "cpu" else 0, dtype=torch.int32)

    def distinct(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The distinct ones of the rows, and each one's place among them: (N,) -> (U,), (N,).

        Each place writes its number at its row; the place whose number stays speaks for all equal ones. Unlike sorting,
        which a GPU does, this is linear in N.
        """
        if rows.device.type != "cpu":
            distinct, places = torch.unique(rows, return_inverse=True)
            return distinct, places
        places = torch.arange(len(rows), dtype=torch.int32)
        speaks = self.owner.scatter_(0, rows, places).index_select(0, rows) == places  # (N,)
        found = rows.numpy()[np.flatnonzero(speaks)]  # torch's nonzero takes longer
        distinct = torch.from_numpy(np.sort(found) if self.ordered else found)
        self.owner.scatter_(0, distinct, places[: len(distinct)])
        return distinct, self.owner.index_select(0, rows).long()

    def read(self, rows: Tensor, step: int) -> Touched:
        """Distinct rows as they are after this step."""
        state, weight = self.state.index_select(0, rows), self.weight.index_select(0, rows)  # faster than [rows]
        self._age(weight, state, rows, step)
        return Touched(self, rows, weight.requires_grad_(), state)

    def _age(self, weight: Tensor, state: Tensor, rows: Tensor | slice, step: int) -> None:
        """Bring rows to this step, in place: weight (U, width), state (U, parts · width), rows (U,) their numbers."""
        since = self.last[rows] if isinstance(rows, slice) else self.last.index_select(0, rows)
        self.rule.age(self._moved(weight, state), since=since, now=step, rate=self._rate(rows))

    def _rate(self, rows: Tensor | slice) -> Rate:
        every = torch.arange(len(self.last), device=self.last.device)[rows] if isinstance(rows, slice) else rows
        return self.rule.rate(every, len(self.last))

    def _moved(self, weight: Tensor, state: Tensor) -> Moved:
        mean, square, *average = torch.split(state, self.width, dim=1)
        return Moved(weight, mean, square, average[0] if average else None)

    @torch.no_grad()
    def update(self, touched: Touched, *, step: int) -> None:
        """One step of the rule, from the rows' gradient."""
        moved, rows, shrink = self._moved(touched.weight, touched.state), touched.rows, self.rule.curves.shrink
        self.rule.step(moved, touched.gradient, step=step, rate=self._rate(rows), shrink=shrink)
        put(self.weight, rows, touched.weight)
        put(self.state, rows, touched.state)
        self.last.index_fill_(0, rows, step)

    @torch.no_grad()
    def catch_up(self, step: int) -> None:
        """Bring every row to this step."""
        if int(self.last.min()) == step:
            return
        for start in range(0, len(self.last), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            self._age(self.weight[rows], self.state[rows], rows, step)
        self.last.fill_(step)

    @property
    def average(self) -> Tensor:
        """The rows' averages as of the step each belongs to: (rows, width)."""
        return self.state[:, 2 * self.width :]


class Reads:
    """Which rows of some tables forward passes read.

    Args:
        tables: by their numbers.
        now: how many steps were made.
    """

    def __init__(self, tables: Sequence[LazyTable], now: Callable[[], int]) -> None:
        self.tables, self.now = tables, now
        self._reads: list[list[Touched]] = [[] for _ in tables]

    def read(self, number: int, rows: Tensor) -> Tensor:
        """Rows of the table with this number, as they are now: (N,) -> (N, width)."""
        table = self.tables[number]
        distinct, places = table.distinct(rows)
        touched = table.read(distinct, self.now())
        self._reads[number].append(touched)
        return Spread.apply(touched.weight, places)  # type: ignore[no-untyped-call, no-any-return]

    def take(self) -> list[Touched]:
        """What came back to the rows that were read since the last call; each table has one part, or none."""
        reads, self._reads = self._reads, [[] for _ in self.tables]
        trained = [[read for read in of_table if read.weight.grad is not None] for of_table in reads]
        return [joined(of_table, self.now()) for of_table in trained if of_table]


class LazyEmbedding:
    """The tables of an embedding layer, from now on trained by the rows that its forward passes read.

    Shape: state (parts · number of weights,) and last (rows,) hold those of all tables one after the other.

    Args:
        embedding: the layer.
        rule: of the update.
        now: how many steps were made.
    """

    def __init__(self, embedding: FeatureEmbedding, rule: UpdateRule, *, now: Callable[[], int]) -> None:
        parts = num_parts(rule.decay)
        self.state = embedding.weight.detach().new_zeros(parts * len(embedding.weight))
        self.last = torch.zeros(embedding.num_rows, dtype=torch.int64, device=embedding.weight.device)
        sizes = [len(table) for table in embedding.tables]
        states = torch.split(self.state, [parts * table.numel() for table in embedding.tables])
        self.tables = [
            LazyTable(table, rule, state=state.view(len(table), -1), last=last)
            for table, state, last in zip(embedding.tables, states, torch.split(self.last, sizes), strict=True)
        ]
        self.reads = Reads(self.tables, now)
        embedding.read = self.read

    def read(self, number: int, rows: Tensor) -> Tensor:
        """Rows of the table with this number, as they are now: (N,) -> (N, width)."""
        return self.reads.read(number, rows)


def joined(reads: Sequence[Touched], step: int) -> Touched:
    """Several reads of one table as one."""
    if len(reads) == 1:
        return reads[0]
    table = reads[0].table
    rows, places = table.distinct(torch.cat([read.rows for read in reads]))
    joint = table.read(rows, step)
    joint.weight.grad = sums_at(places, torch.cat([read.gradient for read in reads]), len(rows))
    return joint


AnyEmbedding = TypeVar("AnyEmbedding", bound=LazyEmbedding)


class LazyTables(Generic[AnyEmbedding]):
    """All lazy tables of a model, by the names of their parameters.

    Args:
        model: whose embedding layers they are.
        make: what trains a layer by the rows that are read.
    """

    def __init__(self, model: nn.Module, make: Callable[[FeatureEmbedding], AnyEmbedding]) -> None:
        layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, FeatureEmbedding)}
        self.layers = {f"{name}.weight".removeprefix("."): layer for name, layer in layers.items()}
        self.embeddings = {name: make(layer) for name, layer in self.layers.items()}

    @property
    def tables(self) -> list[LazyTable]:
        return [table for embedding in self.embeddings.values() for table in embedding.tables]

    def catch_up(self, step: int) -> None:
        for table in self.tables:
            table.catch_up(step)

    def state(self) -> dict[str, Tensor]:
        parts = {"rows": "weight", "state": "state", "last": "last"}
        return {
            f"{key}.{name}.{number}": getattr(table, part)
            for name, embedding in self.embeddings.items()
            for number, table in enumerate(embedding.tables)
            for key, part in parts.items()
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        for key, kept in self.state().items():
            kept.copy_(state[key])

    def close(self) -> None:
        """Leave ordinary layers, with the weights of the last reading of all rows."""
        for layer in self.layers.values():
            layer.read = None


@contextlib.contextmanager
def holding(weights: Sequence[Tensor], values: Sequence[Tensor] | None) -> Iterator[None]:
    """Inside, the weights have these values, or their own; any change to them is undone at the end."""
    own = [weight.detach().clone() for weight in weights]
    if values is not None:
        _set(weights, values)
    try:
        yield
    finally:
        _set(weights, own)


@torch.no_grad()
def _set(weights: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for weight, value in zip(weights, values, strict=True):
        weight.copy_(value)
