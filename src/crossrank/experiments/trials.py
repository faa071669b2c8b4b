"""The trials of a search: draw a setting, train it, keep what was measured.

Trials that differ in their learning rate alone are a family: the first draws all values, the others their rate.
"""

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
from crossrank.errors import ConfigError, RunError
from crossrank.evaluation.metrics import CRITERIA, badness
from crossrank.experiments.space import Space
from crossrank.files import is_as_written, read_json, signed, write_json
from crossrank.folders import partial_of
from crossrank.models.cost import Cost, model_cost
from crossrank.runs import Run
from crossrank.shapes import parse
from crossrank.training import Config, Planned, train_or_resume, train_together

if TYPE_CHECKING:
    import optuna

State = Literal["complete", "pruned", "failed"]
RATE = "training.learning_rate"
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
        seconds: of training; where a family trained as one program, a share of its time.
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


def run_family(tasks: Sequence[Task]) -> list[Trial]:
    """The trials' results, from their files if they were finished before; all that is kept of a trial is that file.

    On a GPU a family trains as one program where it can, and what was killed is trained again from the start. Elsewhere
    its trials train one after the other, and what was killed goes on from its last checkpoint.
    """
    if not all(_file(task).is_file() for task in tasks):
        dataset = EncodedDataset.open(tasks[0].dataset)
        first = _draw(tasks[0], dataset, {})
        family = [first, *(_draw(task, dataset, first.values) for task in tasks[1:])]
        _train([attempt for attempt in family if not _file(attempt.task).is_file()])
    for task in tasks:  # after the files are there, lest a kill leave half a run and no result
        for folder in (partial_of(_run_folder(task)), _run_folder(task)):
            shutil.rmtree(folder, ignore_errors=True)
    return [_read(_file(task)) for task in tasks]


def _read(file: Path) -> Trial:
    hint = "Remove it: its trial is then made again."
    content = read_json(file, dict[str, Any], hint=hint)
    if not is_as_written(content):
        raise RunError(f"{file} must be what was written; it is not.", hint=hint)
    try:
        return parse(Trial, {key: value for key, value in content.items() if key != "checksum"})
    except ConfigError as problem:
        raise RunError(f"{file} is not what it must be: {problem.message}", hint=hint) from None


def _file(task: Task) -> Path:
    return task.folder / f"{task.number:04d}.json"


def _run_folder(task: Task) -> Path:
    return task.folder / f"{task.number:04d}"


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


def _draw(task: Task, dataset: EncodedDataset, given: Mapping[str, Any]) -> _Attempt:
    """A setting below the cap; those above it, and those that contradict themselves, are drawn again.

    Where the values of another one are given, the learning rate alone is drawn.
    """
    import optuna

    study, problem = _study(task), None
    search = {name: parameter for name, parameter in task.space.search.items() if not given or name == RATE}
    distributions = {name: parameter.distribution() for name, parameter in search.items()}
    for _ in range(DRAWS):
        asked = study.ask(distributions)
        values = {**given, **{name: search[name].read(value) for name, value in asked.params.items()}}
        try:
            config = Config.parse(task.space.config(values))
            cost = model_cost(config.model, dataset.features)
        except ConfigError as error:
            problem = error
        else:
            if cost.network_parameters <= task.max_parameters:
                return _Attempt(task, dataset, asked, values, config, cost)
        study.tell(asked, state=optuna.trial.TrialState.FAIL)
    raise problem or ConfigError(
        f"The space must hold settings of at most {task.max_parameters:,} parameters; got none in {DRAWS} draws.",
        hint="Search smaller sizes, or raise the cap.",
    )


@dataclasses.dataclass(frozen=True)
class _Attempt:
    """A trial whose setting is drawn."""

    task: Task
    dataset: EncodedDataset
    asked: optuna.Trial
    values: Mapping[str, Any]
    config: Config
    cost: Cost
    curve: list[float] = dataclasses.field(default_factory=list)

    @property
    def criterion(self) -> str:
        return CRITERIA[self.dataset.schema.label.kind]

    def follow(self, *_: Any) -> None:
        """Read the curve as far as it goes; raises TrialPruned where it is hopeless."""
        import optuna

        # From the journal, not from what is handed in: a resumed training has evaluations behind it, or is complete.
        run = _run_folder(self.task)
        place = partial_of(run) if partial_of(run).is_dir() else run
        for score in _curve(place / "metrics.jsonl", self.criterion)[len(self.curve) :]:
            self.asked.report(score, len(self.curve))
            self.curve.append(score)
            if self.asked.should_prune():
                raise optuna.TrialPruned

    def train(self) -> Run | Exception:
        """Train alone; returns the run, or what ended it."""
        import optuna

        try:
            self.follow()
            return train_or_resume(
                self.dataset,
                into=_run_folder(self.task),
                config=self.config,
                seed=self.task.seed,
                test=False,
                progress=False,
                on_evaluation=self.follow,
            )
        except (optuna.TrialPruned, ConfigError) as error:
            return error

    def keep(self, ended: Run | Exception, seconds: float) -> None:
        """Write the trial's file."""
        import optuna

        state: State = "complete"
        if isinstance(ended, optuna.TrialPruned):
            state, score = "pruned", min(self.curve)
        elif isinstance(ended, ConfigError):  # the settings were read before, so it is the loss that is not finite
            state, score = "failed", None
        elif isinstance(ended, Exception):
            raise ended
        else:
            score = badness(ended.report["valid"], self.criterion)
        trial = Trial(
            number=self.task.number,
            values=self.values,
            config=self.task.space.config(self.values),
            parameters=self.cost.network_parameters,
            flops=self.cost.flops,
            state=state,
            score=score,
            curve=self.curve,
            seconds=seconds,
        )
        write_json(_file(self.task), signed(dataclasses.asdict(trial)))


def _train(attempts: Sequence[_Attempt]) -> None:
    """Train each until the end, or until its curve is hopeless: as one program, or one after the other."""
    started = time.perf_counter()
    runs = [
        Planned(into=_run_folder(one.task), config=one.config, seed=one.task.seed, on_evaluation=one.follow)
        for one in attempts
    ]
    together = train_together(attempts[0].dataset, runs, test=False, progress=False, overwrite=True)
    if together is not None:
        share = (time.perf_counter() - started) / len(attempts)
        for one, ended in zip(attempts, together, strict=True):
            one.keep(ended, share)
        return
    for one in attempts:
        started = time.perf_counter()
        ended = one.train()
        one.keep(ended, time.perf_counter() - started)


def _curve(journal: Path, criterion: str) -> list[float]:
    text = journal.read_text(encoding="utf-8") if journal.is_file() else ""
    lines = map(json.loads, text[: text.rfind("\n") + 1].splitlines())  # a kill may have cut the last line
    return [badness(line["valid"], criterion) for line in lines if "valid" in line]
