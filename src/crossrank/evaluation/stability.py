"""Which learned crosses hold up when the same model is trained with other seeds."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from crossrank.errors import ConfigError
from crossrank.evaluation.crosses import Explained, explain
from crossrank.results import Cross


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossOverRuns:
    """A cross in several runs.

    Attributes:
        cross: with the means of its strength and norm.
        ranks: in each run; 1 is its strongest.
        deviation: of the strength.
    """

    cross: Cross
    ranks: tuple[int, ...]
    deviation: float

    @property
    def mean_rank(self) -> float:
        return statistics.fmean(self.ranks)

    @property
    def best_rank(self) -> int:
        return min(self.ranks)

    @property
    def worst_rank(self) -> int:
        return max(self.ranks)

    def to_dict(self) -> dict[str, Any]:
        ranks = {key: getattr(self, key) for key in ("mean_rank", "best_rank", "worst_rank")}
        return {**self.cross.to_dict(), **ranks, "ranks": list(self.ranks), "deviation": self.deviation}


def stability(
    runs: Sequence[Explained], *, top: int | None = None, layer: int | None = None, directed: bool = False
) -> list[CrossOverRuns]:
    """The pairs of several runs of one setting, by the mean of their rank; rank 1 is a run's strongest pair.

    A pair whose rank moves from seed to seed was not learned from the data.

    Args:
        runs: run folders' :class:`Run` objects, of one model on one dataset, usually the seeds of ``train_seeds``.
        top, layer, directed: as in :func:`explain`.

    Raises:
        ConfigError: for fewer than two runs, or runs that do not have the same pairs.
    """
    if len(runs) < 2:
        raise ConfigError(
            f"Stability needs at least two runs of a setting; got {len(runs)}.", hint="Train with --seeds 5."
        )
    ranked = [
        {_key(cross): (rank, cross) for rank, cross in enumerate(explain(run, layer=layer, directed=directed), start=1)}
        for run in runs
    ]
    if any(crosses.keys() != ranked[0].keys() for crosses in ranked):
        raise ConfigError(
            "The runs must have the same features and cross layers; theirs differ.",
            hint="Compare the seeds of one setting.",
        )
    found = [_spread([crosses[key] for crosses in ranked]) for key in ranked[0]]
    return sorted(found, key=lambda one: one.mean_rank)[:top]


def _key(cross: Cross) -> tuple[Any, ...]:
    return cross.network, cross.layer, cross.features


def _spread(seen: Sequence[tuple[int, Cross]]) -> CrossOverRuns:
    ranks, crosses = zip(*seen, strict=True)
    strengths = [cross.strength for cross in crosses]
    means = {"strength": statistics.fmean(strengths), "norm": statistics.fmean(cross.norm for cross in crosses)}
    cross = dataclasses.replace(crosses[0], **means)
    return CrossOverRuns(cross=cross, ranks=ranks, deviation=statistics.stdev(strengths))
