"""The few kinds of figures that experiments draw, as SVG or PNG files."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossrank.errors import ConfigError, needed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Figure
else:
    Figure = Any  # matplotlib is imported where something is drawn

Draw = Callable[[Figure], None]
COLORS = {
    "DCN-V2": "#0b6e99",
    "DCN-V2 without bias": "#4fa3c7",
    "DCN-V2 without bias and residual": "#9ccbe0",
    "DCN": "#c0561d",
    "DCN (V1 layer)": "#e09a6c",
    "DNN": "#5b5b5b",
    "DNN (large)": "#9a9a9a",
}


def check_plots(extra: str = "plots") -> None:
    """Raise before hours of work what would be raised after them."""
    needed("matplotlib", "Drawing the figure of an experiment", extra)


def save_figure(draw: Draw, path: Path) -> None:
    """Draw on a new figure and write it; the same numbers give the same file.

    Raises:
        ConfigError: for another ending than .svg or .png.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("svg", "png"):
        raise ConfigError(f"A figure must be a file that ends in .svg or .png; got '{path}'.")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "crossrank", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(layout="constrained")
        draw(figure)
        temporary = path.with_name(f".{path.name}")
        figure.savefig(temporary, format=kind, metadata={"Date": None} if kind == "svg" else None)
    temporary.replace(path)


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean and standard deviation, with the values themselves."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "deviation": deviation, "values": list(values)}


def dots(
    axes: Axes, ours: Mapping[str, Mapping[str, Any]], paper: Mapping[str, float], *, label: str, log: bool = True
) -> None:
    """Our mean and deviation as a dot, the paper's number as a cross, one line for each name."""
    names = list(ours)
    for place, name in enumerate(names):
        color = COLORS.get(name, "#0b6e99")
        axes.errorbar(ours[name]["mean"], place, xerr=_bars([ours[name]], log), fmt="o", color=color, capsize=3)
        if name in paper:
            axes.plot(paper[name], place, marker="x", linestyle="none", color="black", markersize=7)
    if log:
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
    """Our means and deviations as a line for each name; the paper's numbers dotted, with crosses."""
    for name, found in ours.items():
        means = [value["mean"] for value in found]
        bars = _bars(found, log)
        drawn = axes.errorbar(xs, means, yerr=bars, marker="o", capsize=3, color=COLORS.get(name), label=name)
        if paper and name in paper:
            shade = drawn.lines[0].get_color()
            axes.plot(xs, paper[name], marker="x", linestyle=":", color=shade, label=f"{name}, paper")
    if log:
        axes.set_yscale("log")
    axes.set_xticks(list(xs))
    axes.grid(alpha=0.3)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)


def _bars(found: Sequence[Mapping[str, Any]], log: bool) -> list[list[float]]:
    """Error bars down and up; one that reaches zero would fall off a logarithmic scale."""
    deviations = [value["deviation"] or 0.0 for value in found]
    lowest = [0.8 * value["mean"] if log else float("inf") for value in found]
    return [[min(pair) for pair in zip(deviations, lowest, strict=True)], deviations]
