"""How fast the models are, against each other in one process."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from crossrank.models import MODELS, build_model, parse_model_settings
from crossrank.models.cost import markdown_table, model_cost
from crossrank.nn import Features
from crossrank.schema import Feature

FEATURES = [
    *(Feature(f"c{i}", "categorical", 1000) for i in range(26)),
    *(Feature(f"n{i}", "numeric") for i in range(13)),
]
ARITHMETIC = 3.0  # times the DNN's time for a multiply-add, up to which arithmetic is what bounds a model

Step: TypeAlias = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Row:
    """One model's forward and backward pass, per row of the batch.

    ``ratio`` is the time for a multiply-add over the DNN's. ``memory_share`` is the part of the time that moving
    ``bytes_moved`` takes, all that the operations read and write, at the speed of an elementwise sum as large as x0.
    ``fixed_share`` is the part that a batch of a single row takes too: calls, and gradients as large as the tables.
    """

    name: str
    parameters: int
    multiply_adds: int
    microseconds: float
    ratio: float
    bytes_moved: int
    memory_share: float
    fixed_share: float

    @property
    def bound(self) -> str:
        if self.ratio <= ARITHMETIC:
            return "arithmetic"
        shares = {"memory": self.memory_share, "fixed cost": self.fixed_share}
        return ", ".join(f"{what} {min(share, 1):.0%}" for what, share in shares.items())


def bench_models(
    names: Sequence[str] = tuple(MODELS), *, batch_size: int = 512, num_threads: int = 2, repeats: int = 31
) -> list[Row]:
    """Measure models at one setting: 26 features of 1,000 values and width 16, 13 numbers, deep layers of 256 and 256.

    Each repeat takes a step of every model in turn, so that a busy moment of the machine meets all of them alike; the
    median over the repeats counts. The DNN is always among the rows, the first of them.
    """
    names = list(dict.fromkeys(["dnn", *names]))
    torch.manual_seed(0)
    settings = {name: parse_model_settings({"name": name}) for name in names}
    models = {name: build_model(settings[name], FEATURES) for name in names}
    sum_bytes, sum_step = _elementwise_sum(batch_size, models["dnn"].layout.input_dim)
    with _threads(num_threads):
        full, single = ({name: _step(model, size) for name, model in models.items()} for size in (batch_size, 1))
        moved = {name: _bytes_moved(step) for name, step in full.items()}
        seconds, fixed = _medians({**full, "sum": sum_step}, repeats), _medians(single, repeats)
    costs = {name: model_cost(settings[name], FEATURES) for name in names}
    work = {name: sum(cost.multiply_adds.values()) for name, cost in costs.items()}
    return [
        Row(
            name=name,
            parameters=sum(costs[name].parameters.values()),
            multiply_adds=work[name],
            microseconds=seconds[name] / batch_size * 1e6,
            ratio=(seconds[name] / work[name]) / (seconds["dnn"] / work["dnn"]),
            bytes_moved=moved[name] // batch_size,
            memory_share=moved[name] / sum_bytes * seconds["sum"] / seconds[name],
            fixed_share=fixed[name] / seconds[name],
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


def _step(model: nn.Module, batch_size: int) -> Step:
    """A forward and a backward pass over random rows."""
    kinds = [[feature for feature in FEATURES if feature.kind == kind] for kind in ("categorical", "numeric")]
    ids = torch.stack([torch.randint(feature.vocab_size, (batch_size,)) for feature in kinds[0]], dim=1)
    rows = Features(ids, torch.randn(batch_size, len(kinds[1])))
    labels = torch.randint(2, (batch_size,)).float()

    def step() -> None:
        model.zero_grad()
        torch.autograd.backward(F.binary_cross_entropy_with_logits(model(rows), labels))

    return step


def _elementwise_sum(batch_size: int, input_dim: int) -> tuple[int, Step]:
    """The bytes that a sum of two tensors like x0 moves, and the sum."""
    left, right, out = (torch.ones(batch_size, input_dim) for _ in range(3))
    return 3 * left.nbytes, lambda: torch.add(left, right, out=out)


def _medians(steps: Mapping[str, Step], repeats: int) -> dict[str, float]:
    """Seconds of each step, the steps taking turns; two rounds warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(2 + repeats):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times[2:]) for name, times in seconds.items()}


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _bytes_moved(step: Step) -> int:
    """What the operations of a step read and write, each operand once."""
    counter = _Bytes()  # type: ignore[no-untyped-call]
    with counter:
        step()
    return counter.total


class _Bytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    total: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.total += sum(leaf.nbytes for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor))
        return result
