"""Which trial is best, and who wins a tie."""

from __future__ import annotations

import pytest

from crossrank.experiments.leaderboard import (
    Finalist,
    choose,
    draw_front,
    leaderboard,
    leaderboard_table,
    pareto_front,
    ranked,
)
from crossrank.experiments.trials import Trial


def trial(number: int, score: float | None, flops: int, state: str = "complete") -> Trial:
    return Trial(
        number=number,
        values={"training.learning_rate": 0.1, "model.deep.sizes:layers": 2, "model.deep.sizes:size": 8},
        config={},
        parameters=flops // 2,
        flops=flops,
        state=state,
        score=score,
        curve=[],
        seconds=number,
    )


TRIALS = [
    trial(0, None, 10, "failed"),
    trial(1, 0.50, 100),
    trial(2, 0.10, 5, "pruned"),
    trial(3, 0.40, 300),
    trial(4, 0.45, 200),
    trial(5, 0.45, 150),
    trial(6, 0.60, 120),
]


def test_complete_trials_come_first_by_score_and_then_by_cost():
    assert [t.number for t in ranked(TRIALS)] == [3, 5, 4, 1, 6, 2, 0]


def test_the_front_holds_what_no_other_trial_beats_in_both():
    assert [t.number for t in pareto_front(TRIALS)] == [3, 5, 1]


@pytest.mark.parametrize(
    ("deviation", "winner"),
    [
        (0.001, 3),  # 2 √2 · 0.001 / 2 = 0.0014: no tie
        (0.05, 5),  # 0.07: the middle one ties, the cheapest does not
        (0.1, 1),  # 0.14: all tie
    ],
)
def test_a_tie_within_the_noise_of_the_seeds_goes_to_the_cheaper_one(deviation, winner):
    finalists = [Finalist(t, t.score, deviation, 4) for t in pareto_front(TRIALS)]
    assert choose(finalists).trial.number == winner


def test_the_leaderboard_knows_no_times_and_shows_the_settings():
    rows = leaderboard(TRIALS)
    assert [row["place"] for row in rows] == list(range(1, 8))
    assert not any("seconds" in row for row in rows)
    table = leaderboard_table(rows, criterion="logloss").splitlines()
    assert "0.40000" in table[2] and "learning_rate 0.1, deep.sizes 2 × 8" in table[2]
    assert "failed" in table[-1] and "–" in table[-1]


@pytest.mark.parametrize(
    ("trials", "winner"),
    [
        (TRIALS[1:2], 1),  # alone
        ([trial(1, 0.40, 300), trial(2, 0.401, 300), trial(3, 0.45, 10)], 3),  # cheap, and worse than most
        ([trial(1, 0.40, 300), trial(2, 0.40, 200), trial(3, 0.40, 100)], 3),  # equals
    ],
)
def test_the_figure_shows_its_winner_whole_and_the_legend_beside_it(trials, winner):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    draw_front(figure, trials, next(t for t in trials if t.number == winner), criterion="logloss")
    FigureCanvasAgg(figure).draw()
    (axes,), (legend,) = figure.axes, figure.legends
    star = next(line for line in axes.lines if line.get_label() == "winner")
    x, y = axes.transData.transform(star.get_xydata()[0])
    radius = star.get_markersize() / 2 * figure.dpi / 72
    frame = axes.get_window_extent()
    assert frame.y0 + radius / 2 < y < frame.y1 - radius / 2
    assert frame.x0 < x < frame.x1
    assert legend.get_window_extent().y0 >= frame.y1
