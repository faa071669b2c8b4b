"""Which crosses hold up over seeds."""

from __future__ import annotations

import statistics
from types import SimpleNamespace

import pytest

from crossrank.errors import ConfigError
from crossrank.evaluation.stability import stability


def fake(**strengths: float) -> SimpleNamespace:
    pairs = [
        {"left": name[0], "right": name[1], "layer": 1, "network": 1, "norm": 1.0, "norms": [1.0, 1.0]}
        | {"strength": value, "strengths": [value, value / 2]}
        for name, value in strengths.items()
    ]
    return SimpleNamespace(crosses=pairs)


SEEDS = [
    fake(ab=3.0, ac=2.0, bc=1.0, aa=9.0),
    fake(ab=5.0, ac=1.0, bc=2.0, aa=9.0),
    fake(ab=4.0, ac=6.0, bc=1.0, aa=9.0),
]


def test_pairs_come_by_their_mean_rank_with_its_range() -> None:
    found = stability(SEEDS)
    assert [(pair["left"] + pair["right"], pair["ranks"]) for pair in found] == [
        ("ab", [1, 1, 2]),
        ("ac", [2, 3, 1]),
        ("bc", [3, 2, 3]),
    ]
    assert [(pair["best_rank"], pair["worst_rank"]) for pair in found] == [(1, 2), (1, 3), (2, 3)]
    assert found[0]["mean_rank"] == pytest.approx(4 / 3)
    assert found[0]["strength"] == 4.0
    assert found[0]["deviation"] == statistics.stdev([3.0, 5.0, 4.0])


def test_top_cuts_and_directed_counts_both_ways() -> None:
    assert len(stability(SEEDS, top=1)) == 1
    assert len(stability(SEEDS, directed=True)) == 6


@pytest.mark.parametrize(
    ("runs", "message"), [(SEEDS[:1], "at least two runs"), ([fake(ab=1.0), fake(ac=1.0)], "same features")]
)
def test_runs_that_cannot_be_compared_are_refused(runs, message) -> None:
    with pytest.raises(ConfigError, match=message):
        stability(runs)
