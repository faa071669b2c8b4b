"""Step time by part against the number of devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from crossrank.errors import ConfigError
from crossrank.experiments.figures import Figure, check_plots, save_figure
from crossrank.experiments.planning.cluster import Cluster
from crossrank.experiments.planning.estimate import Plan, make_plan
from crossrank.experiments.planning.workload import Workload

COLORS = {
    "compute": "#0b6e99",
    "memory": "#4fa3c7",
    "all_to_all": "#c0561d",
    "all_reduce": "#e09a6c",
    "overhead": "#9a9a9a",
}


def plans_by_size(workload: Workload, cluster: Cluster) -> list[Plan]:
    """The same training on 1, 2, 4, … devices, up to those of the cluster; without those whose memory is too small."""
    counts = [1]
    while counts[-1] < cluster.num_devices:
        counts.append(min(2 * counts[-1], cluster.num_devices))
    plans = []
    for count in counts:
        smaller = cluster.with_devices(count)
        if smaller.num_devices == count and workload.config.training.batch_size % count == 0:
            try:
                plans.append(make_plan(workload, smaller))
            except ConfigError:  # the tables have no place there
                continue
    return [plan for plan in plans if plan.fits]


def draw_plans(plans: Sequence[Plan], path: Path) -> None:
    """Stacked bars, one for each number of devices."""
    check_plots()
    if not plans:
        raise ConfigError("A figure must have a plan that fits into memory; got none.")

    def draw(figure: Figure) -> None:
        axes, bottom = figure.subplots(), [0.0] * len(plans)
        names = [f"{plan.cluster.num_devices}" for plan in plans]
        for part, color in COLORS.items():
            heights = [1e3 * dataclasses.asdict(plan.step)[part] for plan in plans]
            axes.bar(names, heights, bottom=bottom, color=color, label=part.replace("_", "-"), width=0.7)
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        axes.set_xlabel(f"devices, {plans[0].batch_size:,} rows a step")
        axes.set_ylabel("ms a step, planned")
        axes.set_title(plans[0].cluster.device.about.partition(";")[0])
        axes.set_axisbelow(True)
        axes.grid(axis="y", alpha=0.3)
        axes.legend()

    save_figure(draw, path)
