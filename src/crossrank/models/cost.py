"""What a model costs, counted on the model itself so that no formula can drift from the code.

Parameters are those of the model built for its shapes alone (:func:`~crossrank.models.build.build_shapes`).
Multiply-adds are the scalar multiplications that one more row causes: matrix products (a multiplication and an addition
for each term) and elementwise products, counted while the model runs on shapes alone. Sums, lookups, activation
functions and layer norms are left out, as the literature does.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from crossrank.models.base import Model
from crossrank.models.build import build_shapes
from crossrank.models.settings import ModelSettings
from crossrank.nn import Bag, Features
from crossrank.schema import Feature

PARTS = ("embedding", "interaction", "deep", "output")
_PART_OF = {  # by a model's attribute; all others are the interaction
    **dict.fromkeys(("embedding", "linear", "fields"), "embedding"),
    **dict.fromkeys(("deep", "bottom", "hidden"), "deep"),
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
    count = settings.ensemble
    model = build_shapes(dataclasses.replace(settings, ensemble=1), features)
    with torch.device("meta"), torch.no_grad():
        one, two = _count(model, num_rows=1), _count(model, num_rows=2)
    parameters = Counter[str]()
    for name, parameter in model.named_parameters():
        parameters[_PART_OF.get(name.split(".")[0], "interaction")] += count * parameter.numel()
    # The second row's share; what a batch costs once, such as reshaping a kernel, is in both.
    return Cost({part: parameters[part] for part in PARTS}, {part: count * (two[part] - one[part]) for part in PARTS})


def cost_table(costs: Mapping[str, Cost]) -> str:
    """Costs by name as a Markdown table: ``parameters / multiply-adds per row`` of each part, then totals."""
    lines = [["model", *PARTS, "parameters", "without embedding", "FLOPs"]]
    for name, cost in costs.items():
        parts = [f"{cost.parameters[part]:,} / {cost.multiply_adds[part]:,}" for part in PARTS]
        totals = (sum(cost.parameters.values()), cost.network_parameters, cost.flops)
        lines.append([name, *parts, *(f"{total:,}" for total in totals)])
    return markdown_table(lines)


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Rows of cells, the header first, aligned so that the Markdown also reads well as plain text.

    >>> print(markdown_table([["model", "rows"], ["fm", "7"]]))
    | model | rows |
    | :---- | ---: |
    | fm    |    7 |
    """
    names, *columns = [[*column] for column in zip(*lines, strict=True)]
    width = max(map(len, names))
    aligned = [[name.ljust(width) for name in [names[0], ":" + "-" * (width - 1), *names[1:]]]]
    for column in columns:
        width = max(3, *map(len, column))
        aligned.append([cell.rjust(width) for cell in [column[0], "-" * (width - 1) + ":", *column[1:]]])
    return "\n".join("| " + " | ".join(line) + " |" for line in zip(*aligned, strict=True))


def _count(model: Model, *, num_rows: int) -> Counter[str]:
    """Multiply-adds of one pass, by part."""
    with FlopCounterMode(display=False, custom_mapping=_PRODUCTS) as counter:
        model(shapes_of(model, num_rows))
    counts = Counter(interaction=counter.get_total_flops() // 2)
    flops = counter.get_flop_counts()  # by module, each with all that it contains
    for name, module in ((name, module) for name, module in model.named_children() if name in _PART_OF):
        # Of a list of modules only its members are called.
        called = [f"{name}.{i}" for i in range(len(module))] if isinstance(module, nn.ModuleList) else [name]
        found = [flops.get(f"{type(model).__name__}.{one}", {}) for one in called]
        multiply_adds = sum(sum(one.values()) for one in found) // 2
        counts.update({_PART_OF[name]: multiply_adds, "interaction": -multiply_adds})
    return counts


def shapes_of(model: Model, num_rows: int) -> Features:
    """Rows without content; one value in each bag."""
    of_kind = model.layout.of_kind
    bag = Bag(torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows + 1, dtype=torch.int64))
    return Features(
        torch.empty(num_rows, len(of_kind("categorical")), dtype=torch.int64),
        torch.empty(num_rows, model.layout.num_numbers),
        (bag,) * len(of_kind("multivalent")),
    )


def _elementwise(*_: Any, out_shape: Sequence[int], **__: Any) -> int:
    return 2 * math.prod(out_shape)


def _vector_product(matrix: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * math.prod(matrix)


# torch counts matrix products only, two FLOPs for each term.
_ATEN = torch.ops.aten
_PRODUCTS: dict[Any, Any] = {
    **dict.fromkeys((_ATEN.mul, _ATEN.addcmul, _ATEN.pow, _ATEN.square), _elementwise),
    **dict.fromkeys((_ATEN.mv, _ATEN.dot), _vector_product),
}
