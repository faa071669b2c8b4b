"""Which learned crosses hold up when the same model is trained with other seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from crossrank.errors import ConfigError
from crossrank.evaluation.crosses import Explained, explain


def stability(
    runs: Sequence[Explained], *, top: int | None = None, layer: int | None = None, directed: bool = False
) -> list[dict[str, Any]]:
    """The pairs of several runs of one setting, by the mean of their rank; rank 1 is a run's strongest pair.

    A pair whose rank moves from seed to seed was not learned from the data.

    Args:
        runs: run folders' :class:`Run` objects, of one model on one dataset, usually the seeds of ``train_seeds``.
        top, layer, directed: as in :func:`explain`.

    Returns:
        ``[{"left", "right", "layer", "network", "mean_rank", "best_rank", "worst_rank", "ranks", "strength",
        "deviation"}, …]``, where strength and deviation are taken over the runs.

    Raises:
        ConfigError: for fewer than two runs, or runs that do not have the same pairs.
    """
    if len(runs) < 2:
        raise ConfigError(
            f"Stability needs at least two runs of a setting; got {len(runs)}.", hint="Train with --seeds 5."
        )
    ranked = [
        {_key(pair): (rank, pair) for rank, pair in enumerate(explain(run, layer=layer, directed=directed), start=1)}
        for run in runs
    ]
    if any(pairs.keys() != ranked[0].keys() for pairs in ranked):
        raise ConfigError(
            "The runs must have the same features and cross layers; theirs differ.",
            hint="Compare the seeds of one setting.",
        )
    found = [_spread([pairs[key] for pairs in ranked]) for key in ranked[0]]
    return sorted(found, key=lambda pair: pair["mean_rank"])[:top]


def _key(pair: dict[str, Any]) -> tuple[Any, ...]:
    return pair["network"], pair["layer"], pair["left"], pair["right"]


def _spread(seen: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    ranks, strengths = [rank for rank, _ in seen], [pair["strength"] for _, pair in seen]
    pair = seen[0][1]
    return {
        **{key: pair[key] for key in ("left", "right", "layer", "network")},
        "mean_rank": statistics.fmean(ranks),
        "best_rank": min(ranks),
        "worst_rank": max(ranks),
        "ranks": ranks,
        "strength": statistics.fmean(strengths),
        "deviation": statistics.stdev(strengths),
    }
