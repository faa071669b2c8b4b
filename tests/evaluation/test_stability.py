"""Which crosses hold up over seeds."""

from __future__ import annotations

import statistics
from types import SimpleNamespace

import pytest

from crossrank.errors import ConfigError
from crossrank.evaluation.stability import stability
from crossrank.results import Cross


def fake(**strengths: float) -> SimpleNamespace:
    crosses = [
        Cross(features=tuple(name), strength=value, strengths=(value, value / 2), norm=1.0, norms=(1.0, 1.0))
        for name, value in strengths.items()
    ]
    return SimpleNamespace(crosses=crosses)


SEEDS = [
    fake(ab=3.0, ac=2.0, bc=1.0, aa=9.0),
    fake(ab=5.0, ac=1.0, bc=2.0, aa=9.0),
    fake(ab=4.0, ac=6.0, bc=1.0, aa=9.0),
]


def test_pairs_come_by_their_mean_rank_with_its_range() -> None:
    found = stability(SEEDS)
    assert [("".join(one.cross.features), one.ranks) for one in found] == [
        ("ab", (1, 1, 2)),
        ("ac", (2, 3, 1)),
        ("bc", (3, 2, 3)),
    ]
    assert [(one.best_rank, one.worst_rank) for one in found] == [(1, 2), (1, 3), (2, 3)]
    assert found[0].mean_rank == pytest.approx(4 / 3)
    assert found[0].cross.strength == 4.0
    assert found[0].deviation == statistics.stdev([3.0, 5.0, 4.0])
    kept = {"left": "a", "right": "b", "layer": 1, "ranks": [1, 1, 2], "best_rank": 1, "worst_rank": 2, "strength": 4.0}
    assert kept.items() <= found[0].to_dict().items()


def test_top_cuts_and_directed_counts_both_ways() -> None:
    assert len(stability(SEEDS, top=1)) == 1
    assert len(stability(SEEDS, directed=True)) == 6


@pytest.mark.parametrize(
    ("runs", "message"), [(SEEDS[:1], "at least two runs"), ([fake(ab=1.0), fake(ac=1.0)], "same features")]
)
def test_runs_that_cannot_be_compared_are_refused(runs, message) -> None:
    with pytest.raises(ConfigError, match=message):
        stability(runs)
