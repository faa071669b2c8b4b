"""Which trial is best, which are worth their cost, and who wins a tie."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from crossrank.experiments.figures import Figure
from crossrank.experiments.space import LAYERS, LEFT_OUT, SIZE
from crossrank.experiments.trials import Trial
from crossrank.models.cost import markdown_table

NOISE = 2.0  # standard errors of a difference that still count as a tie


@dataclasses.dataclass(frozen=True)
class Finalist:
    """A trial trained with several seeds: mean and deviation of its score on the validation rows."""

    trial: Trial
    mean: float
    deviation: float
    seeds: int


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Best first: complete trials by score, then pruned ones, then failed ones; of equals the cheaper one."""
    order = {"complete": 0, "pruned": 1, "failed": 2}
    return sorted(trials, key=lambda t: (order[t.state], t.score if t.score is not None else 0.0, t.flops, t.number))


def pareto_front(trials: Sequence[Trial]) -> list[Trial]:
    """The complete trials that no other one beats in both score and FLOPs, best score first."""
    front: list[Trial] = []
    for trial in ranked([trial for trial in trials if trial.state == "complete"]):
        if not front or trial.flops < front[-1].flops:
            front.append(trial)
    return front


def choose(finalists: Sequence[Finalist]) -> Finalist:
    """The cheapest of those that tie with the best.

    Two tie where their means differ by no more than two standard errors of the difference, √((s₁² + s₂²) / n).
    """
    best = min(finalists, key=lambda finalist: finalist.mean)
    tied = [
        f for f in finalists if f.mean - best.mean <= NOISE * math.hypot(f.deviation, best.deviation) / f.seeds**0.5
    ]
    return min(tied, key=lambda finalist: (finalist.trial.flops, finalist.mean))


def leaderboard(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """What stands in leaderboard.json: everything but times, so that the same search gives the same file."""
    front = {trial.number for trial in pareto_front(trials)}
    rows = []
    for place, trial in enumerate(ranked(trials), start=1):
        row = dataclasses.asdict(trial)
        del row["seconds"], row["curve"]
        rows.append({"place": place, **row, "evaluations": len(trial.curve), "on_front": trial.number in front})
    return rows


def leaderboard_table(rows: Sequence[Mapping[str, Any]], *, criterion: str) -> str:
    """The leaderboard as Markdown."""
    table = [["place", "trial", "state", criterion, "parameters", "FLOPs", "front", "settings"]]
    for row in rows:
        score = "–" if row["score"] is None else f"{row['score']:.5f}"
        cost = (f"{row['parameters']:,}", f"{row['flops']:,}", "✓" if row["on_front"] else "")
        table.append([str(row["place"]), str(row["number"]), row["state"], score, *cost, _settings(row["values"])])
    return markdown_table(table)


def _settings(values: Mapping[str, Any]) -> str:
    parts = []
    for name, value in values.items():
        short = name.removeprefix("model.").removeprefix("training.")
        if name.endswith(LAYERS):
            key = name.removesuffix(LAYERS)
            parts.append(f"{short.removesuffix(LAYERS)} {value} × {values[key + SIZE]}")
        elif value != LEFT_OUT and not name.endswith(SIZE):
            parts.append(f"{short} {value:.3g}" if isinstance(value, float) else f"{short} {value}")
    return ", ".join(parts)


def draw_front(figure: Figure, trials: Sequence[Trial], winner: Trial, *, criterion: str) -> None:
    """Score against FLOPs, with the Pareto front."""
    figure.set_size_inches(6.4, 4.2)
    axes = figure.subplots()
    complete = [(trial.flops, trial.score) for trial in trials if trial.state == "complete"]
    pruned = [(trial.flops, trial.score) for trial in trials if trial.state == "pruned"]
    front = [(trial.flops, trial.score) for trial in reversed(pareto_front(trials))]
    for points, marker, color, label in ((pruned, "x", "#bbbbbb", "pruned"), (complete, "o", "#9ccbe0", "complete")):
        if points:
            axes.plot(*zip(*points, strict=True), marker, color=color, label=label)
    axes.step(*zip(*front, strict=True), "o-", where="post", color="#0b6e99", label="Pareto front")
    place = winner.score or 0.0
    axes.plot(winner.flops, place, "*", color="#c0561d", markersize=14, label="winner", clip_on=False, zorder=3)
    scores = sorted(score for _, score in complete if score is not None)
    low = min(score for _, score in [*complete, *pruned] if score is not None)
    high = max(place, scores[0] + 3 * (scores[len(scores) // 2] - scores[0]))  # what is hopeless needs no room
    margin = 0.08 * (high - low) or 1e-4
    axes.set_ylim(low - margin, high + margin)
    axes.set_xscale("log")
    axes.set_xlabel("FLOPs per row")
    axes.set_ylabel(f"{criterion} on validation rows")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)  # above the points, never over one
