"""From a dataset or a raw table to a finished run folder."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import shutil
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import crossrank
from crossrank.data import SPLITS, EncodedDataset
from crossrank.errors import ConfigError, RunError
from crossrank.evaluation.evaluate import measure_split, score_split
from crossrank.evaluation.findings import initial_spectra, write_findings
from crossrank.files import publish, write_json, writing
from crossrank.models import Model, build_model
from crossrank.models.own import BUILT_IN, check_model
from crossrank.nn import FeatureEmbedding
from crossrank.results import Spectrum
from crossrank.runs import Run, write_run
from crossrank.runs.run import describe_machine, read_json
from crossrank.schema import Schema
from crossrank.training.checkpoint import has_checkpoint
from crossrank.training.device import choose_device
from crossrank.training.engines import joint_engine, make_engine
from crossrank.training.memory import keep_freed_memory
from crossrank.training.plan import as_made, changes, check_splits, is_interrupted, partial_of, plan_in
from crossrank.training.profile import StepClock
from crossrank.training.settings import Config
from crossrank.training.trackers import Tracker, find_tracker
from crossrank.training.trainer import Trainer, threads, train_models


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
    into, given = Path(into), config
    config = config if isinstance(config, Config) else Config.parse(config or {})
    tracker = find_tracker(track)
    keep_freed_memory()
    partial = _claim(into, resume=resume, overwrite=overwrite)
    try:
        with writing(into, RunError):
            dataset = _dataset(data, schema, config, partial / "dataset", progress=progress)
            _train(
                dataset,
                as_made(given, dataset),
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
    resume = is_interrupted(into)
    return train(data, into=into, resume=resume, overwrite=not resume, **options)


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
    into, given = Path(into), config
    if (into / "run.json").is_file():
        raise RunError(
            f"{into} must be free for a folder of {seeds} runs; it is a single run.", hint="Choose another name."
        )
    config = config if isinstance(config, Config) else Config.parse(config or {})
    schema, progress, own = options.pop("schema", None), options.get("progress"), into / "dataset.partial"
    try:
        with writing(into, RunError):
            dataset = _dataset(data, schema, config, own, progress=progress)
        config = as_made(given, dataset)
        runs = [Planned(into=into / f"seed-{seed}", config=config, seed=seed) for seed in range(seeds)]
        _train_missing(dataset, runs, overwrite=overwrite, **options)
    finally:
        shutil.rmtree(own, ignore_errors=True)
        with contextlib.suppress(OSError):  # it is not empty, or not there
            into.rmdir()
    reports = [Run.open(run.into).report for run in runs]
    summary: dict[str, Any] = {"seeds": seeds}
    for split in (name for name in ("valid", "test") if name in reports[0]):
        measured = {key for key, value in reports[0][split].items() if isinstance(value, float)}
        summary[split] = {key: _spread([report[split][key] for report in reports]) for key in sorted(measured)}
    summary["still_improving"] = sum(report["training"].get("still_improving", False) for report in reports)
    write_json(into / "seeds.json", summary)
    return summary


def _train_missing(dataset: EncodedDataset, runs: Sequence[Planned], *, overwrite: bool, **options: Any) -> None:
    """Train those of some runs that are not there yet, after a look at whether those that are belong to them."""
    for run in runs if not overwrite else ():
        if changed := changes(plan_in(run.into), run.config, dataset, seed=run.seed):
            raise RunError(
                f"The seeds of a folder must have one config and the same data; in {run.into} {changed}.",
                hint="Give the same ones, choose another folder, or pass --overwrite to train all anew.",
            )
    missing = [run for run in runs if overwrite or not (run.into / "run.json").is_file()]
    joint = {key: options[key] for key in ("test", "progress") if key in options}
    alone = any(value for key, value in options.items() if key not in joint)
    begun = not overwrite and any(is_interrupted(run.into) for run in missing)
    ended = None if alone or begun else train_together(dataset, missing, overwrite=True, **joint)
    for run in missing if ended is None else ():
        if overwrite:
            train(dataset, into=run.into, seed=run.seed, config=run.config, overwrite=True, **options)
        else:
            train_or_resume(dataset, into=run.into, seed=run.seed, config=run.config, **options)
    for one in ended or ():
        if isinstance(one, Exception):
            raise one


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
    runs = [dataclasses.replace(run, config=as_made(run.config, dataset)) for run in runs]
    with torch.random.fork_rng(devices=[]):
        models = [_seeded_model(run.config, dataset, run.seed) for run in runs]
    spectra = [initial_spectra(model, dataset.valid) for model in models]
    engine = joint_engine(models, dataset, [run.config.training for run in runs], seeds=seeds)
    if engine is None:
        return None
    trainers = []
    for run, member in zip(runs, engine.members, strict=True):
        folder = _claim(run.into, resume=False, overwrite=overwrite)
        write_json(folder / "plan.json", {"config": run.config.to_dict(), **_facts(run.seed, dataset)})
        settings = run.config.training
        trainers.append(Trainer(member, dataset, settings, folder=folder, on_evaluation=run.on_evaluation))
    initial = dict(zip(trainers, spectra, strict=True))
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(min(seeds))  # of what dropout drops
        ended = train_models(engine, trainers, show_progress=progress)
    engine.close()

    def finish(trainer: Trainer, run: Planned) -> Run | Exception:
        if trainer in ended:
            return ended[trainer]
        facts, spectra = _facts(run.seed, dataset), initial[trainer]
        _finish(trainer, dataset, run.config, facts, trainer.folder, test=test, initial=spectra)
        publish(trainer.folder, run.into)
        return Run.open(run.into)

    with threads(len(trainers)) as each:
        return list(each(finish, trainers, runs))


def _may_share(data: Any, configs: Sequence[Config]) -> bool:
    """Whether trainings differ in what one program allows, as far as can be said without their models."""
    alike = [dataclasses.replace(one, training=dataclasses.replace(one.training, learning_rate=1.0)) for one in configs]
    own = alike[0].model.name not in BUILT_IN  # it may do what cannot be stacked, such as batch statistics
    same = all(one == alike[0] for one in alike)
    return same and not own and _is_encoded(data) and choose_device(alike[0].training.device).type != "cpu"


def _facts(seed: int, dataset: EncodedDataset) -> dict[str, Any]:
    return {"seed": seed, "data_fingerprint": dataset.fingerprint}


def _seeded_model(config: Config, dataset: EncodedDataset, seed: int) -> Model:
    torch.manual_seed(seed)
    return build_model(config.model, dataset.features)


def _spread(values: list[float]) -> dict[str, Any]:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "deviation": deviation, "values": values}


def _claim(into: Path, *, resume: bool, overwrite: bool) -> Path:
    """The folder to work in, or an error where that would lose somebody's work."""
    partial = partial_of(into)
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


def _dataset(data: Any, schema: Schema | None, config: Config, into: Path, *, progress: bool | None) -> EncodedDataset:
    """The encoded dataset that was meant: as given, opened, or made from a raw table for this training only."""
    if _is_encoded(data):
        return data if isinstance(data, EncodedDataset) else EncodedDataset.open(Path(data))
    from crossrank.data.prepare import prepare
    from crossrank.data.table import open_table

    table = open_table(data)
    schema = schema or Schema.infer(table.head())
    shown = progress is not False
    return prepare(table, schema, into, split=config.split, overwrite=True, progress=shown)


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
    check_splits(dataset, _measured(test))
    if resume and (changed := changes(read_json(folder / "plan.json"), config, dataset, seed=seed)):
        raise ConfigError(
            f"A resumed training must have the config, seed and data it began with; {changed}.",
            hint="Give the same ones, or train anew with --overwrite.",
        )
    write_json(folder / "plan.json", {"config": config.to_dict(), **facts})
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        model, rows = _seeded_model(config, dataset, seed), dataset.train
        check_model(model, [rows.take(np.arange(min(count, len(rows)))).features for count in (7, 1)])
        initial = initial_spectra(model, dataset.valid)
        engine = make_engine(model, dataset, config.training, seed=seed, clock=clock)
        trainer = Trainer(
            engine.members[0],
            dataset,
            config.training,
            folder=folder,
            on_line=tracker.line,
            on_evaluation=on_evaluation,
        )
        if resume:
            trainer.resume()
        report = None
        tracker.start(folder.name.removesuffix(".partial"), folder, config.to_dict(), trainer.position.step)
        try:
            for error in train_models(engine, [trainer], show_progress=progress, clock=clock).values():
                raise error
            report = _finish(trainer, dataset, config, facts, folder, test=test, initial=initial)
        finally:
            tracker.finish(report)


def _measured(test: bool) -> tuple[str, ...]:
    return SPLITS if test else SPLITS[:2]


def _finish(
    trainer: Trainer,
    dataset: EncodedDataset,
    config: Config,
    facts: dict[str, Any],
    folder: Path,
    *,
    test: bool,
    initial: Sequence[Spectrum],
) -> dict[str, Any]:
    """Measure the trained model and write every file of the run into the folder; returns its report."""
    model, names = trainer.model, _measured(test)[1:]
    logits = {name: score_split(model, trainer.member.placed(dataset.split(name))) for name in names}
    report = _report(trainer, dataset, logits)
    trainer.member.close()
    write_findings(folder, model, dataset, split=names[-1], initial=initial, logits=logits[names[-1]])
    info = {
        "library_version": crossrank.__version__,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "machine": describe_machine(),
        "rows": dataset.num_rows,
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
    cut_short = position.step == trainer.total_steps > (trainer.settings.eval_every or trainer.batches_per_epoch)
    report: dict[str, Any] = {
        name: measure_split(logits[name], dataset.split(name), label_kind=kind) for name in logits
    }
    report["training"] = {
        "steps": position.step,
        "best_step": position.best_step,
        "still_improving": cut_short and position.best_step == position.step,
        "epochs": position.step / trainer.batches_per_epoch,
        "seconds": position.seconds,
        "rows_per_second": position.rows / max(position.seconds, 1e-9),
    }
    report["parameters"] = count_parameters(trainer.model)
    return report


def count_parameters(model: Model) -> dict[str, int]:
    """Weights in embedding tables, and in everything else."""
    tables = sum(module.weight.numel() for module in model.modules() if isinstance(module, FeatureEmbedding))
    return {"embedding": tables, "network": sum(p.numel() for p in model.parameters()) - tables}
