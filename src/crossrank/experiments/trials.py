"""One trial of a search: draw a setting, train it, keep what was measured."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from crossrank.data import EncodedDataset
from crossrank.errors import ConfigError
from crossrank.experiments.space import Space
from crossrank.files import write_json
from crossrank.models.cost import Cost, model_cost
from crossrank.runs import Run
from crossrank.runs.run import read_json
from crossrank.training import Config, train
from crossrank.training.checkpoint import has_checkpoint
from crossrank.training.trainer import CRITERIA

if TYPE_CHECKING:
    import optuna

State = Literal["complete", "pruned", "failed"]
DRAWS = 100  # before a space is taken to have nothing below the cap
STARTING_TRIALS = 5  # of a stage, whose curves decide nothing yet
SPARED_EVALUATIONS = 2  # at the start of a curve, where the order of settings is not that of the end


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """What became of one setting.

    Attributes:
        number: in the search, from 0.
        values: of the searched parameters.
        config: all settings that were given.
        parameters: of the network, without embeddings.
        flops: per row.
        state: "pruned" where training was ended early, "failed" where it diverged.
        score: the best on the validation rows, lower is better; None where it failed.
        curve: the score at each evaluation.
        seconds: of training.
    """

    number: int
    values: Mapping[str, Any]
    config: Mapping[str, Any]
    parameters: int
    flops: int
    state: State
    score: float | None
    curve: Sequence[float]
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """All that a trial depends on; it may run in any process, at any time, and give the same result."""

    folder: Path
    dataset: Path
    number: int
    seed: int
    space: Space
    earlier: Sequence[Trial]
    max_parameters: int


def run_trial(task: Task) -> Trial:
    """The trial's result, from its file if it was finished before; all that is kept of a trial is that file."""
    file, into = task.folder / f"{task.number:04d}.json", _run_folder(task)
    if not file.is_file():
        write_json(file, dataclasses.asdict(_finish(task)))
    for folder in (_partial(into), into):  # after the file is there, lest a kill leave half a run and no result
        shutil.rmtree(folder, ignore_errors=True)
    return Trial(**read_json(file))


def _finish(task: Task) -> Trial:
    dataset = EncodedDataset.open(task.dataset)
    asked, values, config, cost = _draw(_study(task), task, dataset)
    started = time.perf_counter()
    state, score, curve = _train(task, dataset, config, asked)
    return Trial(
        number=task.number,
        values=values,
        config=task.space.config(values),
        parameters=cost.network_parameters,
        flops=cost.flops,
        state=state,
        score=score,
        curve=curve,
        seconds=time.perf_counter() - started,
    )


def _run_folder(task: Task) -> Path:
    return task.folder / f"{task.number:04d}"


def _partial(run: Path) -> Path:
    return run.with_name(f"{run.name}.partial")


def train_or_resume(dataset: EncodedDataset, into: Path, config: Config, *, seed: int, **options: Any) -> Run:
    """A run that never looks at the test rows: as it stands, resumed, or trained."""
    if (into / "run.json").is_file():
        return Run.open(into)
    partial = _partial(into)
    resume = has_checkpoint(partial) and (partial / "plan.json").is_file()  # without its plan, it died while finishing
    return train(
        dataset,
        into=into,
        config=config,
        seed=seed,
        test=False,
        progress=False,
        resume=resume,
        overwrite=not resume,
        **options,
    )


def _study(task: Task) -> optuna.Study:
    """The earlier trials as the sampler sees them; its random numbers belong to this trial alone."""
    import optuna

    logging.getLogger("optuna").setLevel(logging.WARNING)
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=task.seed * 1_000_003 + task.number),
        pruner=optuna.pruners.MedianPruner(STARTING_TRIALS, SPARED_EVALUATIONS),
    )
    search, states = task.space.search, optuna.trial.TrialState
    distributions = {name: parameter.distribution() for name, parameter in search.items()}
    for trial in task.earlier:
        if trial.score is not None and task.space.holds(trial.values):
            study.add_trial(
                optuna.create_trial(
                    state=states.COMPLETE if trial.state == "complete" else states.PRUNED,
                    params={name: search[name].written(value) for name, value in trial.values.items()},
                    distributions=distributions,
                    value=trial.score,
                    intermediate_values=dict(enumerate(trial.curve)),
                )
            )
    return study


def _draw(
    study: optuna.Study, task: Task, dataset: EncodedDataset
) -> tuple[optuna.Trial, dict[str, Any], Config, Cost]:
    """A setting below the cap; those above it, and those that contradict themselves, are drawn again."""
    search, problem = task.space.search, None
    distributions = {name: parameter.distribution() for name, parameter in search.items()}
    for _ in range(DRAWS):
        asked = study.ask(distributions)
        values = {name: search[name].read(value) for name, value in asked.params.items()}
        try:
            config = Config.parse(task.space.config(values))
            cost = model_cost(config.model, dataset.features)
        except ConfigError as error:
            problem = error
        else:
            if cost.network_parameters <= task.max_parameters:
                return asked, values, config, cost
        study.tell(asked, state=_failed())
    raise problem or ConfigError(
        f"The space must hold settings of at most {task.max_parameters:,} parameters; got none in {DRAWS} draws.",
        hint="Search smaller sizes, or raise the cap.",
    )


def _failed() -> optuna.trial.TrialState:
    import optuna

    return optuna.trial.TrialState.FAIL


def _train(
    task: Task, dataset: EncodedDataset, config: Config, asked: optuna.Trial
) -> tuple[State, float | None, list[float]]:
    """Train, until the end or until the curve is hopeless."""
    import optuna

    into = _run_folder(task)
    partial = _partial(into)
    criterion = CRITERIA[dataset.schema.label.kind]
    curve: list[float] = []

    def follow(*_: Any) -> None:
        # From the journal, not from what is handed in: a resumed training has evaluations behind it.
        for score in _curve(partial / "metrics.jsonl", criterion)[len(curve) :]:
            asked.report(score, len(curve))
            curve.append(score)
            if asked.should_prune():
                raise optuna.TrialPruned

    state: State = "complete"
    try:
        follow()
        run = train_or_resume(dataset, into, config, seed=task.seed, on_evaluation=follow)
        score = run.report["valid"][criterion]
    except optuna.TrialPruned:
        state, score = "pruned", min(curve)
    except ConfigError:  # the settings were read before, so it is the loss that did not stay finite
        state, score = "failed", None
    return state, score, curve


def _curve(journal: Path, criterion: str) -> list[float]:
    text = journal.read_text(encoding="utf-8") if journal.is_file() else ""
    lines = map(json.loads, text[: text.rfind("\n") + 1].splitlines())  # a kill may have cut the last line
    return [line["valid"][criterion] for line in lines if "valid" in line]
