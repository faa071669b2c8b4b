"""Search for settings, coarse then fine, as the paper does; the test rows are read once, at the end.

The search is a function of the dataset, the space, the seed and the numbers of trials, stages and rates alone. Trials
come in groups of eight: what a trial tries, and when it is given up, depends on the groups before its own and on random
numbers of its own, and in a family of learning rates on those of its first trial, but neither on how many run at a time
nor on when the search was stopped and continued.

::

    search/
      plan.json            what was asked for; a search that continues must ask for the same
      trials/0007.json     one finished trial
      finalists/0007/      a run folder for each seed
      leaderboard.json     all trials, best first; also as leaderboard.md, and leaderboard.svg against cost
      result.json          the winner and its scores over the seeds, test rows included
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from crossrank.config import differences
from crossrank.data import EncodedDataset
from crossrank.errors import ConfigError, RunError, needed
from crossrank.evaluation import evaluate
from crossrank.evaluation.metrics import CRITERIA, badness
from crossrank.experiments.figures import check_plots, save_figure, spread
from crossrank.experiments.leaderboard import (
    Finalist,
    choose,
    draw_front,
    leaderboard,
    leaderboard_table,
    pareto_front,
    ranked,
)
from crossrank.experiments.processes import Map, workers
from crossrank.experiments.space import Space
from crossrank.experiments.trials import RATE, Task, Trial, run_family
from crossrank.files import read_json, write_json, write_text, writing
from crossrank.folders import locked
from crossrank.ray import EngineName
from crossrank.runs import Run
from crossrank.runs.lifecycle import is_run
from crossrank.training import Config, Planned, train_or_resume, train_together
from crossrank.training.device import choose_device

MAX_PARAMETERS = 1024**2 * 5  # the paper's cap, without embeddings
GROUP = 8  # trials that know nothing of each other; part of what a seed means
LEADERS, FEWEST_LEADERS = 0.25, 3  # the share of the trials around which a finer stage looks


@dataclasses.dataclass(frozen=True)
class TuneResult:
    """What a search found.

    Attributes:
        path: its folder.
        leaderboard: all trials, best first, as in leaderboard.json.
        winner: the setting that was chosen, a config for `train`.
        summary: mean, deviation and values of its metrics over the seeds, for "valid" and "test".
    """

    path: Path
    leaderboard: list[dict[str, Any]]
    winner: dict[str, Any]
    summary: dict[str, Any]


def tune(
    dataset: EncodedDataset | Path | str,
    into: Path | str,
    *,
    space: Space | Mapping[str, Any] | Path | str,
    trials: int = 48,
    stages: int = 2,
    rates: int = 1,
    seed: int = 0,
    jobs: int | None = None,
    engine: EngineName = "local",
    finalists: int = 3,
    seeds: int = 5,
    max_parameters: int = MAX_PARAMETERS,
    say: Callable[[str], None] = print,
) -> TuneResult:
    """Search a space; where the folder holds an unfinished search of the same kind, go on with it.

    The first stage searches the space as it is, each later one a smaller space around the best quarter of the trials,
    with ranges on a linear scale. Of the Pareto front of score and FLOPs, the best few are trained with several seeds.
    The cheapest of those that tie on the validation rows wins, and its runs are measured on the test rows.

    Args:
        dataset: an encoded dataset or its path.
        into: the folder of the search.
        space: what to search; see :mod:`crossrank.experiments.space`. A path is a TOML file.
        trials: in all stages together.
        stages: 1 for a single search of the whole space.
        rates: learning rates that each setting is tried with, 1, 2, 4 or 8: so many trials in a row are a family and
            differ in nothing else. On a GPU the trials of a family train as one program; it is not resumed but
            trained again if it is killed.
        seed: of the search and of the trials' training.
        jobs: families at a time, on one thread each; left out, one for each core.
        engine: ``"ray"`` for as many as a cluster has processors; dataset and folder lie on a disk that all share.
        finalists: settings of the front that are trained with several seeds.
        seeds: how many.
        max_parameters: settings above this are not tried; embeddings do not count.
        say: is told how it goes on.

    Raises:
        ConfigError: for a space without any setting below the cap, or no trial that trained to the end; for several
            rates where the space does not search training.learning_rate.
        RunError: where the folder holds another search.
        MissingExtraError: without the 'tune' extra.
    """
    needed("optuna", "Searching for settings", "tune")
    check_plots("tune")
    into = Path(into).absolute()  # the processes of a cluster are somewhere else
    dataset = dataset if isinstance(dataset, EncodedDataset) else EncodedDataset.open(Path(dataset))
    space = _space(space)
    counts = {"trials": trials, "stages": stages, "finalists": finalists, "seeds": seeds, "jobs": jobs}
    for name, value in counts.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1; got {value}.")
    _check_rates(rates, space)
    plan = {"space": space.to_dict(), "trials": trials, "stages": stages, "seed": seed, "finalists": finalists}
    plan |= {"rates": rates, "seeds": seeds, "max_parameters": max_parameters, "data_fingerprint": dataset.fingerprint}
    with writing(into, RunError), locked(into, RunError), workers(jobs, engine) as each:
        _claim(into, plan)
        search = _Search(into, dataset, seed, max_parameters, each, say)
        found = search.trials(space, trials, stages, rates)
        rows = search.write_leaderboard(found)
        chosen = search.final(pareto_front(found)[:finalists], seeds)
        summary = search.write_result(found, chosen)
    return TuneResult(into, rows, _whole(chosen.trial), summary)


def _space(space: Space | Mapping[str, Any] | Path | str) -> Space:
    if isinstance(space, Mapping):
        return Space.parse(space)
    return space if isinstance(space, Space) else Space.load(Path(space))


def _check_rates(rates: int, space: Space) -> None:
    if rates < 1 or GROUP % rates:
        raise ConfigError(f"rates must be 1, 2, 4 or 8, so that {GROUP} trials are whole families; got {rates}.")
    if rates > 1 and RATE not in space.search:
        raise ConfigError(
            f"A space that is searched with {rates} rates must search {RATE}; this one does not.",
            hint=f"Give {RATE} a range or several values, or leave rates out.",
        )


def _claim(into: Path, plan: dict[str, Any]) -> None:
    """A new folder, or one whose search is the same."""
    (into / "trials").mkdir(parents=True, exist_ok=True)
    file = into / "plan.json"
    saved = {"rates": 1, **read_json(file, dict[str, Any])} if file.is_file() else plan  # older searches had one rate
    if saved != plan:
        raise RunError(
            f"{into} must hold this search or none; it holds another: {differences(saved, plan)}.",
            hint="Give the same arguments to go on with it, or choose another folder.",
        )
    write_json(file, plan)


@dataclasses.dataclass(frozen=True)
class _Search:
    """What all steps of a search share."""

    into: Path
    dataset: EncodedDataset
    seed: int
    max_parameters: int
    each: Map
    say: Callable[[str], None]

    @property
    def criterion(self) -> str:
        return CRITERIA[self.dataset.schema.label.kind]

    def trials(self, space: Space, count: int, stages: int, rates: int) -> list[Trial]:
        """Run all stages, each in groups of families."""
        found: list[Trial] = []
        for stage in range(stages):
            end = count * (stage + 1) // stages
            if stage:
                space = space.narrowed([trial.values for trial in self._leaders(found)])
            while len(found) < end:
                numbers = range(len(found), min(len(found) + GROUP, end))
                tasks = [self._task(number, space, found) for number in numbers]
                families = [tasks[first : first + rates] for first in range(0, len(tasks), rates)]
                found += [trial for family in self.each(run_family, families) for trial in family]
                best = ranked(found)[0]
                score = "–" if best.score is None else f"{best.score:.5f}"
                self.say(f"stage {stage + 1}: {len(found)} of {count} trials, best {self.criterion} {score}")
        return found

    def _task(self, number: int, space: Space, earlier: Sequence[Trial]) -> Task:
        return Task(
            folder=self.into / "trials",
            dataset=self.dataset.path.absolute(),
            number=number,
            seed=self.seed,
            space=space,
            earlier=tuple(earlier),
            max_parameters=self.max_parameters,
        )

    def _leaders(self, found: Sequence[Trial]) -> list[Trial]:
        complete = [trial for trial in ranked(found) if trial.state == "complete"]
        if not complete:
            raise ConfigError(
                "At least one trial must train to the end; none did.", hint="Search smaller learning rates."
            )
        return complete[: max(FEWEST_LEADERS, int(LEADERS * len(found)))]

    def write_leaderboard(self, found: Sequence[Trial]) -> list[dict[str, Any]]:
        self._leaders(found)
        rows = leaderboard(found)
        write_json(self.into / "leaderboard.json", rows)
        write_text(self.into / "leaderboard.md", leaderboard_table(rows, criterion=self.criterion) + "\n")
        return rows

    def final(self, front: Sequence[Trial], seeds: int) -> Finalist:
        """Train the best of the front with several seeds, and choose."""
        on_gpu = choose_device(Config.parse(front[0].config).training.device).type == "cuda"
        size = seeds if on_gpu else 1  # the seeds of a finalist are one program there, and else a process each
        parts = [range(first, min(first + size, seeds)) for first in range(0, seeds, size)]
        path = self.dataset.path.absolute()
        jobs = [(path, one, {seed: self._folder(one, seed) for seed in part}) for one in front for part in parts]
        self.say(f"{len(front)} finalists with {seeds} seeds each")
        reports = [report for part in self.each(_train_finalist, jobs) for report in part]
        finalists = []
        for i, trial in enumerate(front):
            scores = spread([badness(report, self.criterion) for report in reports[i * seeds : (i + 1) * seeds]])
            finalists.append(Finalist(trial, scores["mean"], scores["deviation"], seeds))
        return choose(finalists)

    def _folder(self, trial: Trial, seed: int) -> Path:
        return self.into / "finalists" / f"{trial.number:04d}" / f"seed-{seed}"

    def write_result(self, found: Sequence[Trial], chosen: Finalist) -> dict[str, Any]:
        """Measure the winner's runs on the test rows: the only time that they are read."""
        runs = [Run.open(self._folder(chosen.trial, seed)) for seed in range(chosen.seeds)]
        reports = {
            "valid": [run.report["valid"] for run in runs],
            "test": [evaluate(run, self.dataset, split="test") for run in runs],
        }
        summary = {
            split: {
                key: spread([metrics[key] for metrics in measured])
                for key, value in sorted(measured[0].items())
                if isinstance(value, float)
            }
            for split, measured in reports.items()
        }
        result = {"trial": chosen.trial.number, "config": _whole(chosen.trial), "parameters": chosen.trial.parameters}
        write_json(self.into / "result.json", {**result, "flops": chosen.trial.flops, "seeds": chosen.seeds, **summary})
        draw = partial(draw_front, trials=found, winner=chosen.trial, criterion=self.criterion)
        save_figure(draw, self.into / "leaderboard.svg")
        return summary


def _whole(trial: Trial) -> dict[str, Any]:
    """Its config with every default written out, so that `train` fills in nothing else."""
    values = Config.parse(trial.config).to_dict()
    return {part: values[part] for part in ("model", "training")}


def _train_finalist(job: tuple[Path, Trial, Mapping[int, Path]]) -> list[dict[str, Any]]:
    """Train a setting with some seeds; returns their metrics on the validation rows."""
    path, trial, places = job
    dataset, config = EncodedDataset.open(path), Config.parse(trial.config)
    missing = [Planned(into=place, config=config, seed=seed) for seed, place in places.items() if not is_run(place)]
    for ended in train_together(dataset, missing, test=False, progress=False, overwrite=True) or ():
        if isinstance(ended, Exception):
            raise ended
    runs = [
        train_or_resume(dataset, into=place, config=config, seed=seed, test=False, progress=False)
        for seed, place in places.items()
    ]
    return [run.report["valid"] for run in runs]
