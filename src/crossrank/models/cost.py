"""What a model costs, counted on the model itself so that no formula can drift from the code.

Parameters are those of the model built on torch's meta device, where a table of millions of rows takes no memory.
Multiply-adds are the scalar multiplications that one more row causes: matrix products (a multiplication and an addition
for each term) and elementwise products, counted while the model runs on shapes alone. Sums, lookups and activation
functions are left out, as the literature does.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from crossrank.models.base import Model
from crossrank.models.build import build_model
from crossrank.models.settings import ModelSettings
from crossrank.nn import Bag, Features
from crossrank.schema import Feature

PARTS = ("embedding", "interaction", "deep", "output")
_PART_OF = {  # by a model's attribute; all others are the interaction
    **dict.fromkeys(("embedding", "linear", "fields"), "embedding"),
    **dict.fromkeys(("deep", "bottom"), "deep"),
    **dict.fromkeys(("output", "bias"), "output"),
}


@dataclasses.dataclass(frozen=True)
class Cost:
    """Parameters, and multiply-adds per row, of each part of a model.

    The embedding holds every table, those of first-order terms too; the deep part every stack of dense layers; the
    output the layer that makes the logit; the interaction all the rest.
    """

    parameters: Mapping[str, int]
    multiply_adds: Mapping[str, int]

    @property
    def network_parameters(self) -> int:
        """All parameters but the embedding's, which is what papers compare."""
        return sum(self.parameters.values()) - self.parameters["embedding"]

    @property
    def flops(self) -> int:
        """Floating-point operations per row: a multiplication and an addition for each multiply-add."""
        return 2 * sum(self.multiply_adds.values())


def model_cost(settings: ModelSettings, features: Sequence[Feature]) -> Cost:
    """What the model that the settings describe costs on these features; a multivalent one has one value per row.

    >>> from crossrank.models import parse_model_settings
    >>> settings = parse_model_settings({"name": "dnn", "embedding": {"dim": 4}, "deep": {"sizes": [8]}})
    >>> cost = model_cost(settings, [Feature("user", "categorical", 1_000_000), Feature("age", "numeric")])
    >>> cost.parameters  # 4 · 10⁶, none, 5 · 8 + 8, 8 + 1
    {'embedding': 4000000, 'interaction': 0, 'deep': 48, 'output': 9}
    >>> cost.multiply_adds
    {'embedding': 0, 'interaction': 0, 'deep': 40, 'output': 8}
    """
    with torch.device("meta"), torch.no_grad():
        model = build_model(settings, features).eval()
        one, two = _count(model, num_rows=1), _count(model, num_rows=2)
    parameters = Counter[str]()
    for name, parameter in model.named_parameters():
        parameters[_part(name)] += parameter.numel()
    # The second row's share; what a batch costs once, such as reshaping a kernel, is in both.
    return Cost({part: parameters[part] for part in PARTS}, {part: two[part] - one[part] for part in PARTS})


def cost_table(costs: Mapping[str, Cost]) -> str:
    """Costs by name as a Markdown table: parameters, multiply-adds per row and FLOPs per row, by part.

    Each part stands as ``parameters / multiply-adds``.
    """
    lines = [["model", *PARTS, "parameters", "without embedding", "FLOPs"]]
    for name, cost in costs.items():
        parts = [f"{cost.parameters[part]:,} / {cost.multiply_adds[part]:,}" for part in PARTS]
        totals = (sum(cost.parameters.values()), cost.network_parameters, cost.flops)
        lines.append([name, *parts, *(f"{total:,}" for total in totals)])
    return markdown_table(lines)


def markdown_table(lines: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Rows of cells, the header first, aligned so that the Markdown also reads well as plain text.

    >>> print(markdown_table([["model", "rows"], ["fm", "7"]]))
    | model | rows |
    | ----- | ---: |
    | fm    |    7 |
    """
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * width if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    aligned = [
        [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in [aligned[0], rule, *aligned[1:]])


def _part(name: str) -> str:
    return _PART_OF.get(name.split(".")[0], "interaction")


def _count(model: Model, *, num_rows: int) -> Counter[str]:
    """Multiply-adds of one pass, by part."""
    counter = _MultiplyAdds()
    hooks = []
    for name, module in model.named_modules():
        if name:
            hooks.append(module.register_forward_pre_hook(counter.enter(_part(name))))
            hooks.append(module.register_forward_hook(counter.leave))
    with counter:
        model(_shapes(model, num_rows))
    for hook in hooks:
        hook.remove()
    return counter.counts


def _shapes(model: Model, num_rows: int) -> Features:
    """Rows without content; one value in each bag."""
    of_kind = model.layout.of_kind
    bag = Bag(torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows + 1, dtype=torch.int64))
    return Features(
        torch.empty(num_rows, len(of_kind("categorical")), dtype=torch.int64),
        torch.empty(num_rows, len(of_kind("numeric"))),
        (bag,) * len(of_kind("multivalent")),
    )


_ATEN = torch.ops.aten
_ELEMENTWISE = {_ATEN.mul, _ATEN.addcmul, _ATEN.pow, _ATEN.square}
_VECTOR_PRODUCTS = {_ATEN.mv, _ATEN.dot}  # as many multiplications as their first operand has elements


class _MultiplyAdds(TorchDispatchMode):
    """Counts multiplications below every module, for the part of the model that is running."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()
        self.running = ["interaction"]

    def enter(self, part: str) -> Callable[..., None]:
        return lambda *_: self.running.append(part)

    def leave(self, *_: Any) -> None:
        self.running.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operation = func.overloadpacket
        if operation in flop_registry:
            self.counts[self.running[-1]] += flop_registry[operation](*args, **(kwargs or {}), out_val=result) // 2
        elif operation in _ELEMENTWISE:
            self.counts[self.running[-1]] += result.numel()
        elif operation in _VECTOR_PRODUCTS:
            self.counts[self.running[-1]] += args[0].numel()
        return result
