"""From a dataset or a raw table to a finished run folder."""

from __future__ import annotations

import dataclasses
import datetime
import shutil
import statistics
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import crossrank
from crossrank.data import EncodedDataset
from crossrank.errors import ConfigError, RunError
from crossrank.evaluation.evaluate import measure_split, score_split
from crossrank.evaluation.findings import write_findings
from crossrank.evaluation.spectrum import measure_spectra
from crossrank.files import publish, write_json, writing
from crossrank.models import Model, build_model
from crossrank.models.own import BUILT_IN, check_model
from crossrank.nn import FeatureEmbedding
from crossrank.runs import Run, write_run
from crossrank.runs.run import describe_machine, read_json
from crossrank.schema import Schema
from crossrank.training.checkpoint import has_checkpoint
from crossrank.training.cuda.steps import choose_device
from crossrank.training.memory import keep_freed_memory
from crossrank.training.numbers import as_learned, is_number, start_at_mean, with_enough_steps
from crossrank.training.profile import StepClock
from crossrank.training.settings import Config
from crossrank.training.together import evaluators, share_a_program, train_many
from crossrank.training.trackers import Tracker, find_tracker
from crossrank.training.trainer import Trainer

SEEDING = threading.Lock()  # models that are finished together share the random numbers of the process


def train(
    data: Any,
    *,
    into: Path | str,
    config: Config | Mapping[str, Any] | None = None,
    schema: Schema | None = None,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    test: bool = True,
    progress: bool | None = None,
    clock: StepClock | None = None,
    track: str | Tracker | None = None,
    on_evaluation: Callable[[int, dict[str, Any]], None] | None = None,
) -> Run:
    """Train a model and save it as a run folder.

    Args:
        data: an :class:`EncodedDataset`, the path of one, or a raw table (a path or a data frame).
        into: the run folder to make; until it is complete it is called ``<into>.partial``.
        config: settings, as an object or as nested mappings; what is left out has the paper's value.
        schema: what the columns of a raw table mean; drafted from the table where it is left out.
        seed: of initial weights, order of rows, and dropout. The same seed on the same machine gives the same weights.
        resume: go on with ``<into>.partial`` from its last checkpoint.
        overwrite: replace a run of that name, once the new one is complete.
        test: measure the test rows at the end; a search that still has to choose must not look at them.
        progress: show a bar; ``None`` for on a terminal only.
        clock: a :class:`StepClock` to learn where the time of a step goes.
        track: who is told how it goes: "tensorboard", "mlflow", or a :class:`~crossrank.training.trackers.Tracker`.
        on_evaluation: called with the step and the validation metrics after each evaluation; what it raises ends the
            training.

    Returns:
        The run, opened.

    Example::

        run = cr.train("clicks.csv", into="runs/first", config={"model": {"name": "dcn-v2"}})
        run.report["test"]["auc"]
    """
    into, given = Path(into), config or {}
    config = _config(given)
    tracker = find_tracker(track)
    keep_freed_memory()
    partial = _claim(into, resume=resume, overwrite=overwrite)
    try:
        with writing(into, RunError):
            dataset = _dataset(data, schema, config, partial, progress=progress)
            _train(
                dataset,
                _config(given, dataset),
                seed,
                partial,
                resume=resume,
                test=test,
                progress=progress,
                clock=clock,
                tracker=tracker,
                on_evaluation=on_evaluation,
            )
            publish(partial, into)
    except BaseException:
        if not has_checkpoint(partial):
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return Run.open(into)


def train_or_resume(data: Any, *, into: Path, **options: Any) -> Run:
    """A run as it stands, or resumed where its training was interrupted, or trained; takes what :func:`train` takes."""
    if (into / "run.json").is_file():
        return Run.open(into)
    resume = _is_interrupted(into)
    return train(data, into=into, resume=resume, overwrite=not resume, **options)


def _is_interrupted(into: Path) -> bool:
    partial = _partial(into)
    return has_checkpoint(partial) and (partial / "plan.json").is_file()  # without its plan, it died while finishing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """A run to be made; the words mean what they mean to :func:`train`."""

    into: Path
    config: Config
    seed: int
    on_evaluation: Callable[[int, dict[str, Any]], None] | None = None


def train_seeds(
    data: Any,
    *,
    into: Path | str,
    seeds: int,
    config: Config | Mapping[str, Any] | None = None,
    overwrite: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Train the same setting with several seeds, and write the mean and deviation of its metrics to seeds.json.

    Each seed is a run folder of its own inside ``into``. A seed that is already there is kept, and one whose training
    was interrupted is resumed, so the same call goes on where it stopped. On a GPU, small models on an encoded dataset
    are trained together, as one program.
    """
    into = Path(into)
    if (into / "run.json").is_file():
        raise RunError(
            f"{into} must be free for a folder of {seeds} runs; it is a single run.", hint="Choose another name."
        )
    data = EncodedDataset.open(Path(data)) if _is_encoded(data) and isinstance(data, str | Path) else data
    config = config or {}
    settled = _config(config, data if isinstance(data, EncodedDataset) else None)
    runs = [Planned(into=into / f"seed-{seed}", config=settled, seed=seed) for seed in range(seeds)]
    missing = [run for run in runs if overwrite or not (run.into / "run.json").is_file()]
    joint = {key: options[key] for key in ("test", "progress") if key in options}
    alone = any(value for key, value in options.items() if key not in (*joint, "schema"))
    begun = not overwrite and any(_is_interrupted(run.into) for run in missing)
    ended = None if alone or begun else train_together(data, missing, overwrite=True, **joint)
    for run in missing if ended is None else ():
        if overwrite:
            train(data, into=run.into, seed=run.seed, config=config, overwrite=True, **options)
        else:
            train_or_resume(data, into=run.into, seed=run.seed, config=config, **options)
    for one in ended or ():
        if isinstance(one, Exception):
            raise one
    reports = [Run.open(run.into).report for run in runs]
    summary: dict[str, Any] = {"seeds": seeds}
    for split in (name for name in ("valid", "test") if name in reports[0]):
        measured = {key for key, value in reports[0][split].items() if isinstance(value, float)}
        summary[split] = {key: _spread([report[split][key] for report in reports]) for key in sorted(measured)}
    write_json(into / "seeds.json", summary)
    return summary


def train_together(
    data: Any, runs: Sequence[Planned], *, overwrite: bool = False, test: bool = True, progress: bool | None = None
) -> list[Run | Exception] | None:
    """Train models that differ in their seed and their learning rate alone as one program, into a folder each.

    Returns:
        For each its run, or what ended its training: a loss that did not stay finite, or what its ``on_evaluation``
        raised. None, and nothing is done, where they have to be trained one after the other: on a processor, from a raw
        table, or where :func:`~crossrank.training.cuda.many.can_share_a_program` says no.
    """
    if len(runs) < 2 or not _may_share(data, [run.config for run in runs]):
        return None
    dataset, seeds = _dataset(data, None, runs[0].config, Path(), progress=progress), [run.seed for run in runs]
    with torch.random.fork_rng(devices=[]):
        models = [_seeded_model(run.config, dataset, run.seed) for run in runs]
    learned = as_learned(dataset, models[0]) if is_number(dataset) else dataset
    many = share_a_program(models, learned, [run.config.training for run in runs], seeds=seeds)
    if many is None:
        return None
    trainers = []
    for run, part in zip(runs, many.parts, strict=True):
        folder, settings = _claim(run.into, resume=False, overwrite=overwrite), run.config.training
        write_json(folder / "plan.json", {"config": run.config.to_dict(), **_facts(run.seed, dataset)})
        trainers.append(Trainer(part.model, learned, settings, seed=run.seed, folder=folder, device_training=part))
        trainers[-1].on_evaluation = run.on_evaluation
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(min(seeds))  # of what dropout drops
        ended = train_many(many, trainers, show_progress=progress)

    def finish(trainer: Trainer, run: Planned) -> Run | Exception:
        if trainer in ended:
            return ended[trainer]
        _finish(trainer, dataset, run.config, _facts(run.seed, dataset), trainer.folder, test=test)
        publish(trainer.folder, run.into)
        return Run.open(run.into)

    with evaluators() as pool:
        return list(pool.map(finish, trainers, runs))


def _may_share(data: Any, configs: Sequence[Config]) -> bool:
    """Whether trainings differ in what one program allows, as far as can be said without their models."""
    alike = [dataclasses.replace(one, training=dataclasses.replace(one.training, learning_rate=1.0)) for one in configs]
    own = alike[0].model.name not in BUILT_IN  # it may do what cannot be stacked, such as batch statistics
    same = all(one == alike[0] for one in alike)
    return same and not own and _is_encoded(data) and choose_device(alike[0].training.device).type != "cpu"


def _config(config: Config | Mapping[str, Any], dataset: EncodedDataset | None = None) -> Config:
    """The configuration that was meant; what is left out of a mapping depends on the label, where that is known."""
    if isinstance(config, Config):
        return config
    meant = with_enough_steps(config, len(dataset.train)) if dataset and is_number(dataset) else config
    return Config.parse(meant)


def _facts(seed: int, dataset: EncodedDataset) -> dict[str, Any]:
    return {"seed": seed, "data_fingerprint": dataset.fingerprint}


def _seeded_model(config: Config, dataset: EncodedDataset, seed: int) -> Model:
    torch.manual_seed(seed)
    model = build_model(config.model, dataset.features)
    if is_number(dataset):
        start_at_mean(model, dataset)
    return model


def _spread(values: list[float]) -> dict[str, Any]:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "deviation": deviation, "values": values}


def _partial(into: Path) -> Path:
    return into.with_name(into.name + ".partial")


def _claim(into: Path, *, resume: bool, overwrite: bool) -> Path:
    """The folder to work in, or an error where that would lose somebody's work."""
    partial = _partial(into)
    if into.exists() and not overwrite:
        hint = "Choose another name, or pass --overwrite to replace it."
        raise RunError(f"The run folder {into} must not exist yet; it does.", hint=hint)
    if into.exists() and not (into / "run.json").is_file():
        raise RunError(f"{into} is not a run folder, so it will not be replaced.", hint="Choose another name.")
    if resume and not has_checkpoint(partial):
        raise RunError(f"There is nothing to resume: {partial} has no checkpoint.", hint="Train without --resume.")
    if has_checkpoint(partial) and not resume and not overwrite:
        hint = "Pass --resume to go on with it, or --overwrite to start anew."
        raise RunError(f"{partial} holds an unfinished training.", hint=hint)
    if not resume:
        with writing(into, RunError):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
    return partial


def _is_encoded(data: Any) -> bool:
    is_path = isinstance(data, str | Path)
    return isinstance(data, EncodedDataset) or (is_path and (Path(data) / "manifest.json").is_file())


def _dataset(
    data: Any, schema: Schema | None, config: Config, partial: Path, *, progress: bool | None
) -> EncodedDataset:
    """The encoded dataset that was meant: as given, opened, or made from a raw table for this training only."""
    if _is_encoded(data):
        return data if isinstance(data, EncodedDataset) else EncodedDataset.open(Path(data))
    from crossrank.data.prepare import prepare
    from crossrank.data.table import open_table

    table = open_table(data)
    schema = schema or Schema.infer(table.head())
    shown = progress is not False
    return prepare(table, schema, partial / "dataset", split=config.split, overwrite=True, progress=shown)


def _train(
    dataset: EncodedDataset,
    config: Config,
    seed: int,
    folder: Path,
    *,
    resume: bool,
    test: bool,
    progress: bool | None,
    clock: StepClock | None,
    tracker: Tracker,
    on_evaluation: Callable[[int, dict[str, Any]], None] | None,
) -> None:
    """Train and write the run into the folder."""
    facts = _facts(seed, dataset)
    if resume and (saved := read_json(folder / "plan.json")) != {"config": config.to_dict(), **facts}:
        changed = [key for key in saved if saved[key] != {"config": config.to_dict(), **facts}[key]]
        raise ConfigError(
            f"A resumed training must have the config, seed and data it began with; {', '.join(changed)} differ.",
            hint="Give the same ones, or train anew with --overwrite.",
        )
    write_json(folder / "plan.json", {"config": config.to_dict(), **facts})
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        model, rows = _seeded_model(config, dataset, seed), dataset.train
        check_model(model, [rows.take(np.arange(min(count, len(rows)))).features for count in (7, 1)])
        learned = as_learned(dataset, model) if is_number(dataset) else dataset
        trainer = Trainer(model, learned, config.training, seed=seed, folder=folder, clock=clock)
        trainer.on_line, trainer.on_evaluation = tracker.line, on_evaluation
        if resume:
            trainer.resume()
        report = None
        tracker.start(folder.name.removesuffix(".partial"), folder, config.to_dict(), trainer.position.step)
        try:
            trainer.train(show_progress=progress)
            report = _finish(trainer, dataset, config, facts, folder, test=test)
        finally:
            tracker.finish(report)


def _finish(
    trainer: Trainer, dataset: EncodedDataset, config: Config, facts: dict[str, Any], folder: Path, *, test: bool
) -> dict[str, Any]:
    """Measure the trained model and write every file of the run into the folder; returns its report."""
    model, names = trainer.model, ("valid", "test") if test else ("valid",)
    logits = {name: score_split(model, trainer.measured(dataset.split(name))) for name in names}
    report = _report(trainer, dataset, logits)
    trainer.close()
    with SEEDING, torch.random.fork_rng(devices=[]):
        untrained = _seeded_model(config, dataset, facts["seed"])
    initial = measure_spectra(untrained, dataset.valid)
    write_findings(folder, model, dataset, split=names[-1], initial=initial, logits=logits[names[-1]])
    info = {
        "library_version": crossrank.__version__,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "machine": describe_machine(),
        **facts,
    }
    for leftover in ("plan.json", "checkpoint.partial"):
        _remove(folder / leftover)
    shutil.rmtree(folder / "dataset", ignore_errors=True)
    write_run(folder, model=model, encoder=dataset.encoder, config=config.to_dict(), info=info, report=report)
    return report


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _report(trainer: Trainer, dataset: EncodedDataset, logits: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    position, kind = trainer.position, trainer.label_kind
    report: dict[str, Any] = {
        name: measure_split(logits[name], dataset.split(name), label_kind=kind) for name in logits
    }
    report["training"] = {
        "steps": position.step,
        "best_step": position.best_step,
        "epochs": position.step / trainer.batches_per_epoch,
        "seconds": position.seconds,
        "rows_per_second": position.step * trainer.settings.batch_size / max(position.seconds, 1e-9),
    }
    report["parameters"] = count_parameters(trainer.model)
    return report


def count_parameters(model: Model) -> dict[str, int]:
    """Weights in embedding tables, and in everything else."""
    tables = sum(module.weight.numel() for module in model.modules() if isinstance(module, FeatureEmbedding))
    return {"embedding": tables, "network": sum(p.numel() for p in model.parameters()) - tables}
