"""What a row of a model costs, counted on the model and on the optimiser themselves.

====================  ================================================================================================
products              floating-point operations of a forward pass (:mod:`crossrank.models.cost`); a backward pass has
                      twice as many
activations           bytes that elementwise operations read and write, forward and backward
kept                  bytes of activations that a forward pass keeps for the backward pass
row traffic           bytes that looking up, updating and averaging embedding rows reads and writes: so many for each
                      lookup, and so many for each distinct row
====================  ================================================================================================

The last three are counted by running operations on shapes, or on a few rows, once with n and once with 2n: what does
not depend on n, such as a pass over a table, is left out.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossrank.errors import ConfigError
from crossrank.experiments.bench import traffic_of
from crossrank.models import Model
from crossrank.models.build import build_shapes
from crossrank.models.cost import model_cost, shapes_of
from crossrank.nn.embedding import embedding_layers
from crossrank.schema import Feature
from crossrank.training.lazy import LazyTable, Reads, num_parts
from crossrank.training.rule import UpdateRule
from crossrank.training.settings import Config, TrainingSettings

FLOAT = 4  # bytes
SOME_ROWS = 64  # to count with; of single rows torch reads and writes less


@dataclasses.dataclass(frozen=True)
class Table:
    """An embedding table: (rows, width), and how often each row is read where that is known."""

    name: str
    feature: str
    rows: int
    width: int
    counts: NDArray[Any] | None = dataclasses.field(default=None, compare=False, repr=False)

    def distinct(self, lookups: float) -> float:
        """How many different rows so many lookups are expected to read.

        Σ_i 1 - (1 - p_i)ⁿ, where p_i is the share of row i; without counts all are alike, which makes it largest.

        >>> round(Table("0_0", "user", 1000, 16).distinct(100), 1)
        95.2
        """
        if self.counts is None or not self.counts.sum():
            return float(-np.expm1(lookups * np.log1p(-1 / self.rows))) * self.rows if self.rows > 1 else 1.0
        share = self.counts / self.counts.sum()
        with np.errstate(divide="ignore"):  # a value that all rows have
            return float(-np.expm1(lookups * np.log1p(-share)).sum())


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model on rows of some features, and how it is trained.

    ``flops`` are those of a forward pass of a row; ``activations`` and ``kept`` are bytes of a row.
    """

    config: Config
    rows: int
    model: Model
    tables: Sequence[Table]
    dense: int  # parameters of no table
    flops: int
    activations: int
    kept: int

    @classmethod
    def of(
        cls, config: Config, features: Sequence[Feature], *, rows: int, counts: Mapping[str, Any] | None = None
    ) -> Workload:
        """Count it.

        Args:
            config: model and training.
            features: what an encoder makes, or :func:`planned_features`.
            rows: of an epoch.
            counts: how often each row of a feature's table is read, by feature.
        """
        if rows < 1:
            raise ConfigError(f"An epoch must have at least one row; got {rows:,}.")
        if not features:
            raise ConfigError("A model must have features; got none.", hint="Give --features, --numbers or a dataset.")
        try:
            model = build_shapes(config.model, features)
        except (RuntimeError, TypeError):
            most = max(feature.vocab_size for feature in features)
            raise ConfigError(
                f"A model's sizes must be numbers that torch can count; got up to {most:,} values."
            ) from None
        tables = tuple(_tables(model, counts or {}))
        weights = sum(table.rows * table.width for table in tables)
        some, twice = _passes(model, SOME_ROWS), _passes(model, 2 * SOME_ROWS)
        return cls(
            config=config,
            rows=rows,
            model=model,
            tables=tables,
            dense=sum(parameter.numel() for parameter in model.parameters()) - weights,
            flops=model_cost(config.model, features).flops,
            activations=(twice[0] - some[0]) // SOME_ROWS,
            kept=(twice[1] - some[1]) // SOME_ROWS,
        )


def planned_features(count: int, numbers: int, vocabulary: Sequence[int]) -> list[Feature]:
    """Features that nobody has prepared yet: C1, C2, … and I1, I2, …

    Args:
        count: embedded features.
        numbers: numeric features.
        vocabulary: rows of each feature's table, or one number for all tables together.
    """
    if count < 0 or numbers < 0:
        raise ConfigError(f"Features must be counted from 0 on; got {count} embedded and {numbers} numbers.")
    sizes = [*vocabulary]
    if len(sizes) == 1 and count:
        sizes = [sizes[0] // count + (i < sizes[0] % count) for i in range(count)]
    if len(sizes) != count and count:
        raise ConfigError(
            f"The vocabulary must be one number, or one for each of {count} features; got {len(vocabulary)} numbers.",
            hint="Example: --features 3 --vocabulary 1e9,1e6,500",
        )
    if any(size < 1 for size in sizes):
        raise ConfigError(f"Each of {count} features must have at least one value; got {min(vocabulary):,} values.")
    return [
        *(Feature(f"C{i}", "categorical", size) for i, size in enumerate(sizes[:count], 1)),
        *(Feature(f"I{i}", "numeric") for i in range(1, numbers + 1)),
    ]


def _tables(model: Model, counts: Mapping[str, Any]) -> list[Table]:
    """Every table, under the name that a distributed training gives it."""
    slots, own = [slot.name for slot in model.layout.embedded], {id(layer) for layer in model.tables()}
    return [
        Table(f"{n}_{i}", feature, rows, width, counts.get(feature))
        for n, layer in enumerate(embedding_layers(model))
        for i, (rows, width) in enumerate(zip(layer.vocab_sizes, layer.embedding_dims, strict=True))
        for feature in [slots[i] if id(layer) in own else f"{n}_{i}"]
    ]


def _passes(model: Model, num_rows: int) -> tuple[int, int]:
    """Bytes that a forward and backward pass on shapes moves outside products, and those that it keeps in between."""
    kept = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.nbytes
        return tensor

    def run() -> None:
        torch.autograd.backward(model(shapes_of(model, num_rows)).sum())

    model.zero_grad()
    with torch.device("meta"), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        traffic = traffic_of(run)
    return traffic.total - traffic.products, kept


@functools.lru_cache(maxsize=64)
def row_traffic(width: int, average_decay: float) -> tuple[float, float]:
    """Bytes that a lookup of a row of this width moves, and those that reading and updating a distinct row does.

    It is counted on :class:`~crossrank.training.lazy.LazyTable`, which is what is trained.
    """

    def moved(lookups: int, distinct: int) -> int:
        table = LazyTable(torch.zeros(2 * SOME_ROWS, width), UpdateRule(TrainingSettings(average_decay=average_decay)))
        reads = Reads([table], lambda: 1)

        def step() -> None:
            torch.autograd.backward(reads.read(0, torch.arange(lookups) % distinct).sum())
            for touched in reads.take():
                table.update(touched, step=2)

        return traffic_of(step).total

    some, twice = SOME_ROWS, 2 * SOME_ROWS
    base = moved(twice, some)
    written = 2 * FLOAT * width * (1 + num_parts(average_decay))  # by numpy, whose part is not counted
    return (moved(2 * twice, some) - base) / twice, (moved(twice, twice) - base) / some + written


def row_bytes(width: float, average_decay: float, kind: str) -> float:
    """What is kept of an embedding row: weight, m, v, average, best weights so far, and the step it belongs to.

    On a processor a row also has the place of a batch that speaks for it.
    """
    kept = 1 + num_parts(average_decay) + 1
    return FLOAT * width * kept + 8 + (4 if kind == "cpu" else 0)
