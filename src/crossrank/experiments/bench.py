"""How fast the models are, against each other in one process."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from crossrank.models import MODELS, build_model, parse_model_settings
from crossrank.models.cost import markdown_table, model_cost
from crossrank.nn import Features
from crossrank.schema import Feature

NUM_CATEGORICAL, NUM_NUMERIC, VOCAB_SIZE = 26, 13, 1000
STEADY = 3.0  # times the DNN's time for a multiply-add, up to which a model counts as bound by arithmetic


@dataclasses.dataclass(frozen=True)
class Row:
    """One model's forward and backward pass, per row of the batch.

    ``ratio`` is the time for a multiply-add over the DNN's. ``memory_share`` is how much of the time it takes to move
    ``bytes_moved``, everything that the passes read and write, at the speed of an elementwise sum as large as x0.
    """

    name: str
    parameters: int
    multiply_adds: int
    microseconds: float
    ratio: float
    bytes_moved: int
    memory_share: float

    @property
    def bound(self) -> str:
        return "arithmetic" if self.ratio <= STEADY else f"memory: {self.memory_share:.0%} of the time"


def bench_models(
    names: Sequence[str] = tuple(MODELS), *, batch_size: int = 512, num_threads: int = 2, repeats: int = 31
) -> list[Row]:
    """Measure models at one setting: 26 features of 1,000 values and width 16, 13 numbers, deep layers of 256 and 256.

    Each repeat takes one step of every model in turn, so that a busy moment of the machine meets all of them alike;
    the median over the repeats counts.
    """
    features = [
        *(Feature(f"c{i}", "categorical", VOCAB_SIZE) for i in range(NUM_CATEGORICAL)),
        *(Feature(f"n{i}", "numeric") for i in range(NUM_NUMERIC)),
    ]
    names = list(dict.fromkeys(["dnn", *names]))
    torch.manual_seed(0)
    rows = Features(
        torch.randint(VOCAB_SIZE, (batch_size, NUM_CATEGORICAL)), torch.randn(batch_size, NUM_NUMERIC)
    )
    labels = torch.randint(2, (batch_size,)).float()
    settings = {name: parse_model_settings({"name": name}) for name in names}
    steps = {name: _step(build_model(settings[name], features), rows, labels) for name in names}
    with _threads(num_threads):
        moved = {name: _bytes_moved(step) for name, step in steps.items()}
        sum_bytes, sum_step = _elementwise_sum(batch_size, settings["dnn"].layout(features).input_dim)
        seconds = _medians({**steps, "": sum_step}, repeats)
    costs = {name: model_cost(settings[name], features) for name in names}
    work = {name: sum(cost.multiply_adds.values()) for name, cost in costs.items()}
    return [
        Row(
            name=name,
            parameters=sum(costs[name].parameters.values()),
            multiply_adds=work[name],
            microseconds=seconds[name] / batch_size * 1e6,
            ratio=(seconds[name] / work[name]) / (seconds["dnn"] / work["dnn"]),
            bytes_moved=moved[name] // batch_size,
            memory_share=moved[name] / sum_bytes * seconds[""] / seconds[name],
        )
        for name in names
    ]


def bench_table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    header = ["model", "µs per row", "parameters", "multiply-adds", "time per multiply-add", "kB moved", "bound by"]
    lines = [
        [
            row.name,
            f"{row.microseconds:.2f}",
            f"{row.parameters:,}",
            f"{row.multiply_adds:,}",
            f"{row.ratio:.2f} × DNN",
            f"{row.bytes_moved / 1000:.1f}",
            row.bound,
        ]
        for row in rows
    ]
    return markdown_table([header, *lines])


def _step(model: torch.nn.Module, rows: Features, labels: Tensor) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad()
        F.binary_cross_entropy_with_logits(model(rows), labels).backward()

    return step


def _medians(steps: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds of each step; the first two rounds warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times[2:]) for name, times in seconds.items()}


def _elementwise_sum(batch_size: int, input_dim: int) -> tuple[int, Callable[[], object]]:
    """The bytes that a sum of two tensors like x0 moves, and the sum."""
    left, right, out = (torch.ones(batch_size, input_dim) for _ in range(3))
    return 3 * left.nbytes, lambda: torch.add(left, right, out=out)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _bytes_moved(step: Callable[[], None]) -> int:
    """What the operations of a step read and write, each operand once."""
    with _Bytes() as counter:
        step()
    return counter.total


class _Bytes(TorchDispatchMode):
    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            leaves = torch.utils._pytree.tree_leaves((args, kwargs, result))
            self.total += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))
        return result
