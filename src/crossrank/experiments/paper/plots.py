"""The few kinds of figures that the experiments draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {
    "DCN-V2": "#0b6e99",
    "DCN-V2 without bias": "#4fa3c7",
    "DCN-V2 without bias and residual": "#9ccbe0",
    "DCN": "#c0561d",
    "DCN (V1 layer)": "#e09a6c",
    "DNN": "#5b5b5b",
    "DNN (large)": "#9a9a9a",
}


def dots(axes: Axes, ours: Mapping[str, Mapping[str, Any]], paper: Mapping[str, float], *, label: str) -> None:
    """Our mean and deviation, and the paper's number, one line for each name, on a logarithmic scale."""
    names = list(ours)
    for place, name in enumerate(names):
        color = COLORS.get(name, "#0b6e99")
        found = ours[name]
        axes.errorbar(found["mean"], place, xerr=_error(found), fmt="o", color=color, capsize=3)
        if name in paper:
            axes.plot(paper[name], place, marker="x", linestyle="none", color="black", markersize=7)
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(label)


def lines(
    axes: Axes,
    xs: Sequence[float],
    ours: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    paper: Mapping[str, Sequence[float]] | None = None,
    x_label: str,
    y_label: str,
    log: bool = True,
) -> None:
    """A line with error bars for each name; the paper's dotted, with crosses."""
    for name, found in ours.items():
        color = COLORS.get(name)
        means = [value["mean"] for value in found]
        deviations = [value["deviation"] for value in found]
        drawn = axes.errorbar(xs, means, yerr=deviations, marker="o", capsize=3, color=color, label=name)
        if paper and name in paper:
            shade = drawn.lines[0].get_color()
            axes.plot(xs, paper[name], marker="x", linestyle=":", color=shade, label=f"{name}, paper")
    if log:
        axes.set_yscale("log")
    axes.set_xticks(list(xs))
    axes.grid(alpha=0.3)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)


def _error(found: Mapping[str, Any]) -> list[list[float]]:
    """Error bars that do not fall off a logarithmic scale."""
    return [[min(found["deviation"], 0.9 * found["mean"])], [found["deviation"]]]
