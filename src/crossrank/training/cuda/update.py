"""The update of :mod:`crossrank.training.optimizer`, with everything that changes kept on a device.

All dense weights lie in one flat buffer, so do their gradients and Adam's state: the clip and the update are one kernel
each, however many layers there are. A weight may lie inside a larger block whose padding stays zero. Nothing here waits
for the device, so that a step can be captured as a graph.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from crossrank.nn import FeatureEmbedding
from crossrank.nn.embedding import embedding_layers
from crossrank.training.cuda import plain
from crossrank.training.cuda.plain import Gradient, Rows, Segments
from crossrank.training.lazy import LazyEmbedding, LazyTable, LazyTables, holding
from crossrank.training.rule import UpdateRule
from crossrank.training.settings import TrainingSettings

ALIGNED = 64  # elements: the address of each block suits the matrix units


def operations(device: torch.device) -> ModuleType:
    """The kernels, or where there is no GPU or no Triton the plain functions that they equal."""
    if device.type == "cpu" or importlib.util.find_spec("triton") is None:
        return plain
    from crossrank.training.cuda import kernels  # which imports Triton

    return kernels


class SideStream:
    """Inside ``with``, work goes to a stream of its own, after what was asked for so far; :meth:`join` waits for it.

    What that work reads must live until then: memory that is given back is used again at once. On a processor
    everything stays in order.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
            self.inside: Any = torch.cuda.stream(self.stream)
            self.inside.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        if self.stream is not None:
            self.inside.__exit__(*error)

    def join(self) -> None:
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)


@dataclasses.dataclass(frozen=True)
class Block:
    """A piece of the flat buffer: its shape, and the part that belongs to each parameter."""

    shape: tuple[int, ...]
    parts: Mapping[str, tuple[slice | int, ...]]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def whole(name: str, shape: Sequence[int]) -> Block:
    """A block that is one parameter."""
    return Block(tuple(shape), {name: ()})


class FlatWeights:
    """Dense weights with gradient, Adam's state, average, and where asked for a copy in another type.

    Args:
        blocks: what lies one after the other.
        device: where.
        models: how many models of these blocks lie side by side, each at its own row of the (models, P) buffers.
        average: keep a moving average.
        copy: the type of the copy, if there is to be one.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        *,
        device: torch.device,
        models: int = 1,
        average: bool = True,
        copy: torch.dtype | None = None,
    ) -> None:
        self.blocks, self.starts, size = list(blocks), [], 0
        for block in self.blocks:
            self.starts.append(size)
            size += -(-block.size // ALIGNED) * ALIGNED
        self.weight, self.gradient, self.mean, self.square = (
            torch.zeros(models, size, device=device) for _ in range(4)
        )
        self.average = torch.zeros_like(self.weight) if average else None
        self.copy = torch.zeros_like(self.weight, dtype=copy) if copy else None

    def buffers(self) -> dict[str, Tensor]:
        """What is kept from step to step, by the names of a checkpoint."""
        kept = {"weight": self.weight, "exp_avg": self.mean, "exp_avg_sq": self.square}
        return kept if self.average is None else kept | {"average": self.average}

    def block(self, buffer: Tensor, number: int) -> Tensor:
        """A block of a buffer, padding and all; with a leading axis where there are several models."""
        start, block = self.starts[number], self.blocks[number]
        part = buffer[:, start : start + block.size].view(len(buffer), *block.shape)
        return part[0] if len(buffer) == 1 else part

    def parts(self, buffer: Tensor) -> dict[str, Tensor]:
        """Each parameter's own part of a buffer."""
        every = () if len(buffer) == 1 else (slice(None),)
        return {
            name: self.block(buffer, number)[(*every, *place)]
            for number, block in enumerate(self.blocks)
            for name, place in block.parts.items()
        }


@dataclasses.dataclass(frozen=True)
class TouchedRows:
    """What a step looked up in a table, and the gradient that came back."""

    table: LazyTable
    segments: Segments
    gradient: Gradient


class DeviceEmbedding(LazyEmbedding):
    """The same for tables on a device, where how many distinct rows there are would be known too late.

    Each place of a batch reads its row; the gradients of equal rows are summed afterwards.
    """

    def __init__(self, embedding: FeatureEmbedding, rule: UpdateRule, *, count: Tensor) -> None:
        super().__init__(embedding, rule, now=lambda: int(count))
        self.rows = Rows(embedding.weight.detach(), self.state, self.last, count, rule)
        self.looked_up: list[tuple[LazyTable, Tensor, Tensor]] = []

    def read(self, number: int, rows: Tensor) -> Tensor:
        table = self.tables[number]
        vectors: Tensor = operations(rows.device).read_rows(table, rows, self.rows.step).requires_grad_()
        self.looked_up.append((table, rows, vectors))
        return vectors

    def touched(self) -> list[TouchedRows]:
        """What came back to the rows that were read since the last call."""
        looked_up, self.looked_up = self.looked_up, []
        touched = []
        for table in self.tables:
            mine = [(rows, v.grad) for of, rows, v in looked_up if of is table and v.grad is not None]
            if mine:
                rows, matrix = torch.cat([rows for rows, _ in mine]).int(), torch.cat([grad for _, grad in mine])
                first = torch.zeros(1, dtype=torch.int64, device=rows.device)
                segments = operations(rows.device).sort_rows(rows)
                touched.append(TouchedRows(table, segments, Gradient(matrix.float(), first, table.width)))
        return touched


class DeviceOptimizer:
    """Applies steps to a model on a device.

    Args:
        model: whose parameters are trained; they become views into one buffer.
        settings: clip, and how tables are updated.
        rule: of the update; left out, the one of the settings.
        blocks: how some of the dense parameters are to lie; the others lie alone.
        copy: the type of a second copy of the dense weights, for matrix products.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: TrainingSettings,
        *,
        rule: UpdateRule | None = None,
        blocks: Sequence[Block] = (),
        copy: torch.dtype | None = None,
    ) -> None:
        self.settings, self.rule, device = settings, rule or UpdateRule(settings), next(model.parameters()).device
        self.operations = operations(device)
        self.count = torch.zeros((), dtype=torch.int64, device=device)
        lazily = settings.tables == "lazy"
        self.lazy = LazyTables(model if lazily else nn.Module(), self._lazy_embedding)
        shrinks = bool(settings.table_decay) and not lazily
        self.shrinking = [layer.weight for layer in embedding_layers(model)] if shrinks else []
        self.dense = {name: p for name, p in model.named_parameters() if name not in self.lazy.layers}
        placed = {name for block in blocks for name in block.parts}
        alone = [whole(name, p.shape) for name, p in self.dense.items() if name not in placed]
        self.flat = FlatWeights([*blocks, *alone], device=device, average=self.rule.decay > 0, copy=copy)
        self._move_in()
        self.nothing = torch.zeros(1, device=device)
        self.side_stream = SideStream(device)

    def _lazy_embedding(self, layer: FeatureEmbedding) -> DeviceEmbedding:
        return DeviceEmbedding(layer, self.rule, count=self.count)

    def _move_in(self) -> None:
        """From now on each parameter and its gradient are parts of the flat buffers."""
        weights, gradients = self.flat.parts(self.flat.weight), self.flat.parts(self.flat.gradient)
        for name, parameter in self.dense.items():
            weights[name].copy_(parameter.detach())
            parameter.data, parameter.grad = weights[name], gradients[name]
        if self.flat.average is not None:
            self.flat.average.copy_(self.flat.weight)
        self._refresh()

    def _refresh(self) -> None:
        if self.flat.copy is not None:
            self.flat.copy.copy_(self.flat.weight)

    @property
    def steps(self) -> int:
        """How many steps were made; asking waits for the device."""
        return int(self.count)

    def step(self, loss: Tensor) -> None:
        """Move the weights once against the gradient of the loss."""
        self.flat.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        self.update([part for embedding in self.lazy.embeddings.values() for part in embedding.touched()])

    @torch.no_grad()
    def update(self, touched: Sequence[TouchedRows]) -> None:
        """Clip and rule, from the flat gradient and what came back to rows."""
        flat, ops, rule, settings = self.flat, self.operations, self.rule, self.settings
        sums = [ops.sum_segments(part.segments, part.gradient) for part in touched]
        rows = sum((squares.sum(dim=0, keepdim=True) for _, squares in sums), self.nothing)
        numbers = ops.begin_update(self.count, ops.squares(flat.gradient), rows, rule, clip_norm=settings.clip_norm)
        with self.side_stream:
            for part, (total, _) in zip(touched, sums, strict=True):
                ops.adam_rows(part.table, part.segments, total, numbers)
        for table in self.shrinking:
            table.mul_((1 - settings.table_decay * rule.on(table.device).table_rates * numbers.now[3]).to(table.dtype))
        ops.adam(flat.weight, flat.mean, flat.square, flat.average, flat.copy, flat.gradient, numbers, rule)
        self.side_stream.join()

    def using(self, *, averaged: bool) -> AbstractContextManager[None]:
        """Inside, the model has its averaged or its raw weights, and any change to them is undone at the end."""
        self.lazy.catch_up(self.steps)
        tables = self.lazy.tables
        weights = [*self.dense.values(), *(table.weight for table in tables)]
        if not averaged or self.flat.average is None:
            return holding(weights, None)
        averages = self.flat.parts(self.flat.average)
        return holding(weights, [*(averages[name] for name in self.dense), *(table.average for table in tables)])

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed training needs; the same names as on a processor."""
        steps = self.steps
        state = {"steps": torch.tensor(steps)} | {f"step.{name}": torch.tensor(float(steps)) for name in self.dense}
        for key, buffer in self.flat.buffers().items():
            state |= {f"{key}.{name}": part for name, part in self.flat.parts(buffer).items()}
        if self.count.is_cuda:
            state["random.cuda"] = torch.cuda.get_rng_state(self.count.device)
        return state | self.lazy.state()

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take back what :meth:`state` gave, there or on a processor."""
        self.count.fill_(int(state["steps"]))
        if self.count.is_cuda and "random.cuda" in state:
            torch.cuda.set_rng_state(state["random.cuda"], self.count.device)
        for key, buffer in self.flat.buffers().items():
            for name, part in self.flat.parts(buffer).items():
                if f"{key}.{name}" in state:  # a weight that was never trained has no moments
                    part.copy_(state[f"{key}.{name}"])
        self.lazy.restore(state)
        self._refresh()

    def close(self) -> None:
        """Leave an ordinary model."""
        self.lazy.close()
