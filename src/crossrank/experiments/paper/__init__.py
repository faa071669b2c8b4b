"""The paper's tables and figures, one experiment each.

An experiment is a function that returns a :class:`Page`: our mean ± standard deviation beside the paper's number.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from crossrank.errors import ConfigError, did_you_mean, listing
from crossrank.experiments.figures import check_plots
from crossrank.experiments.paper.page import Page, write_page

FOLDER = Path("docs/paper")


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What an experiment shows and what it costs on two cores.

    Attributes:
        name, about, cost: for `crossrank paper list`.
        place: module and name of its function ``(*, quick, **options) -> Page``.
        needs: the known set without which it cannot run.
        takes: known sets, each of which adds a table.
    """

    name: str
    about: str
    cost: str
    place: str
    needs: str = ""
    takes: tuple[str, ...] = ()

    def data(self, places: Mapping[str, Path]) -> Path | dict[str, Path] | None:
        """Of the places of known sets, what the function is given."""
        if self.takes:
            return {name: places[name] for name in self.takes if name in places} or None
        return places.get(self.needs or "criteo")

    @property
    def function(self) -> Callable[..., Page]:
        """Imported when it is asked for, since some need tables."""
        module, _, name = self.place.partition(":")
        function: Callable[..., Page] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        return function


MOVIELENS = "movielens-1m"
_ALL = (
    Experiment("theorems", "Theorems 1 and 2, term by term for small networks", "a second", "theorems:run"),
    Experiment("polynomials", "Table 1: f1, f2, f3 by DCN, DCN-V2 and DNNs", "5 minutes", "polynomials:run"),
    Experiment("homogeneous", "Figure 3: orders 3 and 4, what bias and residual do", "6 minutes", "homogeneous:run"),
    Experiment("combined", "Table 2: combined orders, a sine and noise, 1 to 5 layers", "7 minutes", "combined:run"),
    Experiment("interaction-alone", "Table 5: interactions alone", "hours", "criteo_studies:interaction_alone"),
    Experiment("criteo", "Table 6 on Criteo: all models", "hours", "criteo_studies:main_table"),
    Experiment("movielens", "Table 6 on MovieLens-1M: all models", "hours (GPU: 9 min)", "movielens:run", MOVIELENS),
    Experiment(
        "successors",
        "networks after DCN-V2, rows like Criteo's and three sets more",
        "hours",
        "successors:run",
        takes=("criteo-sample", "avazu-sample", "book-crossing"),
    ),
    Experiment("memory", "Table 7: cross and ReLU layers of equal size", "hours", "criteo_studies:memory"),
    Experiment("depth", "Figure 4: depth of the cross network", "hours", "criteo_studies:depth"),
    Experiment("rank", "Figure 4: rank of the cross layers", "hours", "criteo_studies:rank"),
    Experiment("experts", "Section 7.5: number of experts", "hours", "criteo_studies:experts"),
    Experiment("relu", "Table 8: cross layers in place of ReLU layers", "hours", "criteo_studies:relu"),
    Experiment(
        "understanding", "Figures 2 and 5: singular values, block norms", "minutes", "understanding:run", MOVIELENS
    ),
)
EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}


def list_experiments() -> list[Experiment]:
    """All experiments, in the paper's order."""
    return list(EXPERIMENTS.values())


def run_experiment(name: str, into: Path | str = FOLDER, *, quick: bool = False, **options: Any) -> Page:
    """Run an experiment and write NAME.md, NAME.json and NAME.svg.

    Args:
        name: one of :func:`list_experiments`.
        into: the folder; files of an earlier run are replaced.
        quick: a reduced version, to see that everything works; its numbers mean little.
        options: what this experiment takes besides, such as ``data``, the path of its set, or ``work``, where its runs
            are kept.

    Raises:
        ConfigError: for an unknown name or option.
        MissingExtraError: without the 'plots' extra.
    """
    if name not in EXPERIMENTS:
        hint = did_you_mean(name, EXPERIMENTS) or "See `crossrank paper list`."
        raise ConfigError(f"An experiment must be one of {listing(EXPERIMENTS, most=40)}; got '{name}'.", hint=hint)
    check_plots()
    function = EXPERIMENTS[name].function
    taken = inspect.signature(function).parameters
    for option in options:
        if option not in taken:
            raise ConfigError(f"The experiment '{name}' takes {listing(taken)}; got '{option}'.")
    started = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        page = function(quick=quick, **options)
    seconds = time.perf_counter() - started
    write_page(page, Path(into), name, command=_command(name, quick, options), seconds=seconds, quick=quick)
    return page


def run_all(
    into: Path | str = FOLDER,
    *,
    quick: bool = False,
    data: Mapping[str, Path] | None = None,
    work: Path | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Run every experiment, those without their data excepted.

    Args:
        into: the folder of the pages.
        quick: reduced versions.
        data: where the known sets lie, by name: "movielens-1m", "criteo", and those that an experiment takes. Without
            Criteo its studies run on generated rows.
        work: where datasets and runs are kept.
        say: is told how it goes on.
    """
    data = data or {}
    for experiment in list_experiments():
        if experiment.needs and experiment.needs not in data:
            say(f"{experiment.name}: left out, because it needs the data of {experiment.needs}")
            continue
        taken = inspect.signature(experiment.function).parameters
        given = {"data": experiment.data(data), "work": work}
        options = {name: value for name, value in given.items() if name in taken and value is not None}
        started = time.perf_counter()
        run_experiment(experiment.name, into, quick=quick, **options)
        say(f"{experiment.name}: {time.perf_counter() - started:,.0f} seconds")


def _command(name: str, quick: bool, options: Mapping[str, Any]) -> str:
    """The command line that repeats an experiment; where a file lay is nobody's business."""
    words = ["crossrank paper", name, *(["--quick"] if quick else [])]
    data = options.get("data") or {}
    places = data if isinstance(data, Mapping) else {EXPERIMENTS[name].needs or "criteo": data}
    words += [f"--data {known}={Path(path).name}" for known, path in places.items()]
    words += ["--search"] if options.get("search") else []
    return " ".join(words)
