"""The paper's tables and figures, one experiment each.

An experiment is a function that returns a :class:`Page`: our mean ± standard deviation beside the paper's number.
"""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from crossrank.errors import ConfigError, did_you_mean, listing
from crossrank.experiments.figures import check_plots
from crossrank.experiments.paper.page import Page, write_page

FOLDER = Path("docs/paper")


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What an experiment shows, what it costs on two cores, and where its function ``run(*, quick)`` stands."""

    name: str
    about: str
    cost: str
    module: str

    @property
    def function(self) -> Callable[..., Page]:
        """Imported when it is asked for, since some need tables."""
        run: Callable[..., Page] = importlib.import_module(f"{__name__}.{self.module}").run
        return run


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("polynomials", "Table 1: f1, f2, f3 by DCN, DCN-V2 and DNNs", "3 minutes", "polynomials"),
        Experiment(
            "homogeneous", "Figure 3: orders 3 and 4, the roles of bias and residual", "4 minutes", "homogeneous"
        ),
        Experiment("combined", "Table 2: combined orders, a sine and noise, 1 to 5 layers", "3 minutes", "combined"),
        Experiment("theorems", "Theorems 1 and 2, term by term for small networks", "a second", "theorems"),
    )
}


def list_experiments() -> list[Experiment]:
    """All experiments, in the paper's order."""
    return list(EXPERIMENTS.values())


def run_experiment(name: str, into: Path | str = FOLDER, *, quick: bool = False, **options: Any) -> Page:
    """Run an experiment and write NAME.md, NAME.json and NAME.svg.

    Args:
        name: one of :func:`list_experiments`.
        into: the folder; files of an earlier run are replaced.
        quick: a reduced version, to see that everything works; its numbers mean little.
        options: what this experiment takes besides, such as ``data``.

    Raises:
        ConfigError: for an unknown name.
        MissingExtraError: without the 'plots' extra.
    """
    if name not in EXPERIMENTS:
        hint = did_you_mean(name, EXPERIMENTS) or "See `crossrank paper list`."
        raise ConfigError(f"An experiment must be one of {listing(EXPERIMENTS, most=40)}; got '{name}'.", hint=hint)
    check_plots()
    started = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        page = EXPERIMENTS[name].function(quick=quick, **options)
    command = f"crossrank paper {name}{' --quick' if quick else ''}"
    write_page(page, Path(into), name, command=command, seconds=time.perf_counter() - started)
    return page
