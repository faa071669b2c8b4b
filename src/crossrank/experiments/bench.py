"""How fast the models are, against each other in one process."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from crossrank.experiments.processes import torch_threads
from crossrank.models import MODELS, build_model, parse_model_settings
from crossrank.models.cost import markdown_table, model_cost
from crossrank.nn import Features
from crossrank.nn.embedding import embedding_layers
from crossrank.schema import Feature

FEATURES = [
    *(Feature(f"c{i}", "categorical", 1000) for i in range(26)),
    *(Feature(f"n{i}", "numeric") for i in range(13)),
]
ARITHMETIC = 3.0  # times the DNN's time for a multiply-add, up to which arithmetic is what bounds a model

_ATEN = torch.ops.aten
PRODUCTS = {_ATEN.mm, _ATEN.addmm, _ATEN.bmm, _ATEN.baddbmm, _ATEN.mv, _ATEN.addmv}

Step: TypeAlias = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Row:
    """One model's forward and backward pass, per row of the batch.

    ``ratio`` is the time for a multiply-add over the DNN's. ``memory_share`` is the part of the time that moving
    ``bytes_moved`` takes, all that the operations read and write, at the speed of adding two tensors as large as the
    model's largest. ``lookup_share`` is the part that the embedding tables take alone, forward and backward; it moves
    some of the same bytes.
    """

    name: str
    parameters: int
    multiply_adds: int
    microseconds: float
    ratio: float
    bytes_moved: int
    memory_share: float
    lookup_share: float

    @property
    def bound(self) -> str:
        if self.ratio <= ARITHMETIC:
            return "arithmetic"
        shares = {"lookups": self.lookup_share, "memory": self.memory_share}
        return ", ".join(f"{what} {min(share, 1):.0%}" for what, share in shares.items())


def bench_models(
    names: Sequence[str] = tuple(MODELS), *, batch_size: int = 512, num_threads: int = 2, repeats: int = 31
) -> list[Row]:
    """Measure models at one setting: 26 features of 1,000 values and width 16, 13 numbers, deep layers of 256 and 256.

    Each repeat takes a step of every model in turn, so that a busy moment of the machine meets all of them alike; the
    median over the repeats counts. With one thread the processor's own time is taken, which other programs hardly
    lengthen. The DNN is always among the rows, the first of them.
    """
    names = list(dict.fromkeys(["dnn", *names]))
    torch.manual_seed(0)
    settings = {name: parse_model_settings({"name": name}) for name in names}
    models = {name: build_model(settings[name], FEATURES) for name in names}
    with torch_threads(num_threads):
        steps = {name: _step(model, batch_size) for name, model in models.items()}
        traffic = {name: traffic_of(step) for name, step in steps.items()}
        sums = {name: _sum(traffic[name].largest) for name in names}
        lookups = {name: _lookups(models[name], steps[name]) for name in names}
        clock = time.process_time if num_threads == 1 else time.perf_counter
        seconds, adding, looking = (_medians(what, repeats, clock) for what in (steps, sums, lookups))
    costs = {name: model_cost(settings[name], FEATURES) for name in names}
    work = {name: sum(cost.multiply_adds.values()) for name, cost in costs.items()}
    return [
        Row(
            name=name,
            parameters=sum(costs[name].parameters.values()),
            multiply_adds=work[name],
            microseconds=seconds[name] / batch_size * 1e6,
            ratio=(seconds[name] / work[name]) / (seconds["dnn"] / work["dnn"]),
            bytes_moved=traffic[name].total // batch_size,
            memory_share=traffic[name].total / (3 * traffic[name].largest) * adding[name] / seconds[name],
            lookup_share=looking[name] / seconds[name],
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


def _lookups(model: nn.Module, step: Step) -> Step:
    """What a step does in embedding tables, alone: the layers on the inputs that they get there."""
    inputs: dict[nn.Module, tuple[Features]] = {}
    hooks = [table.register_forward_pre_hook(inputs.__setitem__) for table in embedding_layers(model)]
    step()
    for hook in hooks:
        hook.remove()

    def look_up() -> None:
        model.zero_grad()
        torch.autograd.backward([table(*args).sum() for table, args in inputs.items()])

    return look_up


def _sum(size: int) -> Step:
    """Adding two tensors of so many bytes, which reads two and writes one."""
    left, right = torch.ones(2, size // 4).unbind()
    return lambda: left + right


def _medians(steps: Mapping[str, Step], repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    """Seconds of each step, the steps taking turns; two rounds warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(2 + repeats):
        for name, step in steps.items():
            start = clock()
            step()
            seconds[name].append(clock() - start)
    return {name: statistics.median(times[2:]) for name, times in seconds.items()}


def traffic_of(step: Step) -> Traffic:
    """What a step reads and writes."""
    traffic = Traffic()  # type: ignore[no-untyped-call]
    with traffic:
        step()
    return traffic


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes that operations read and write, each operand once, and those of the largest tensor among them.

    ``products`` is the part of matrix products.
    """

    total: int = 0
    products: int = 0
    largest: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            sizes = [leaf.nbytes for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
            self.total += sum(sizes)
            self.products += sum(sizes) if func.overloadpacket in PRODUCTS else 0
            self.largest = max(self.largest, *sizes)
        return result
