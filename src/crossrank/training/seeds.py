"""Several runs of one dataset: seeds of one setting, and models that train as one program."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from crossrank.data import EncodedDataset, open_data
from crossrank.data.dataset import is_dataset
from crossrank.errors import RunError
from crossrank.evaluation.findings import initial_spectra
from crossrank.files import write_json, writing
from crossrank.folders import fresh_partial, is_marked, locked, partial_of, publish, recover, remove
from crossrank.models.build import BUILT_IN
from crossrank.runs import Run
from crossrank.runs.lifecycle import claim, is_interrupted, is_run, plan_in
from crossrank.training.device import choose_device
from crossrank.training.engines import joint_engine
from crossrank.training.finish import finish_run, seeded_model
from crossrank.training.plan import Planned, as_made, changes, write_plan
from crossrank.training.prior import rows_to_learn
from crossrank.training.settings import Config, without_tries
from crossrank.training.train import dataset_of, train, train_or_resume
from crossrank.training.trainer import Trainer, threads, train_models
from crossrank.training.tries import is_asked, try_all


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
    if is_run(into):
        raise RunError(
            f"{into} must be free for a folder of {seeds} runs; it is a single run.", hint="Choose another name."
        )
    config = config if isinstance(config, Config) else Config.parse(config or {})
    schema, progress, own = options.pop("schema", None), options.get("progress"), partial_of(into / "dataset")
    with writing(into, RunError), locked(into, RunError):
        try:
            dataset = dataset_of(data, schema, config, own, progress=progress)
            config = as_made(given, dataset, raw=dataset.path == own)
            if is_asked(config.training):
                into.mkdir(parents=True, exist_ok=True)
                tries, asked = fresh_partial(into / "tries", RunError), config.training
                found = try_all(dataset, given or {}, asked, tries, schema=schema, seed=0, progress=progress)
                dataset, model = (found.best.dataset, found.best.model) if found else (dataset, {})
                config = as_made(without_tries(given or {}, **model, ensemble=config.model.ensemble), dataset)
            runs = [Planned(into=into / f"seed-{seed}", config=config, seed=seed) for seed in range(seeds)]
            train_missing(dataset, runs, overwrite=overwrite, **options)
        finally:
            if is_dataset(own):
                shutil.rmtree(own, ignore_errors=True)
            if is_marked(partial_of(into / "tries")):
                remove(partial_of(into / "tries"))
            with contextlib.suppress(OSError):  # it is not empty, or not there
                into.rmdir()
        return _summary(into, runs)


def _summary(into: Path, runs: Sequence[Planned]) -> dict[str, Any]:
    """Mean and deviation of the runs' metrics, which seeds.json has too."""
    reports = [Run.open(run.into).report for run in runs]
    summary: dict[str, Any] = {"seeds": len(runs)}
    for split in (name for name in ("valid", "test") if name in reports[0]):
        measured = {key for key, value in reports[0][split].items() if isinstance(value, float)}
        summary[split] = {key: _spread([report[split][key] for report in reports]) for key in sorted(measured)}
    summary["still_improving"] = sum(report["training"].get("still_improving", False) for report in reports)
    write_json(into / "seeds.json", summary)
    return summary


def train_missing(dataset: EncodedDataset, runs: Sequence[Planned], *, overwrite: bool, **options: Any) -> None:
    """Train those of some runs that are not there yet, after a look at whether those that are belong to them."""
    for run in runs if not overwrite else ():
        if changed := changes(plan_in(run.into), run.config, dataset, seed=run.seed):
            raise RunError(
                f"The seeds of a folder must have one config and the same data; in {run.into} {changed}.",
                hint="Give the same ones, choose another folder, or pass --overwrite to train all anew.",
            )
    for run in runs:
        recover(run.into)
    missing = [run for run in runs if overwrite or not is_run(run.into)]
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
    dataset, seeds = open_data(data), [run.seed for run in runs]
    if len(runs) < 2 or not isinstance(dataset, EncodedDataset) or not _may_share([run.config for run in runs]):
        return None
    runs = [dataclasses.replace(run, config=as_made(run.config, dataset)) for run in runs]
    with torch.random.fork_rng(devices=[]):
        models = [seeded_model(run.config, dataset, run.seed) for run in runs]
    spectra = [initial_spectra(model, dataset.valid) for model in models]
    asked = [run.config.training for run in runs]
    engine = joint_engine(models, rows_to_learn(dataset, models[0], asked[0]), asked, seeds=seeds)
    if engine is None:
        return None
    with contextlib.ExitStack() as stack:
        stack.enter_context(dataset.verifying())
        trainers = []
        for run, member in zip(runs, engine.members, strict=True):
            stack.enter_context(locked(run.into, RunError))
            folder = claim(run.into, resume=False, overwrite=overwrite)
            write_plan(folder, run, dataset)
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
            finish_run(trainer, run, test=test, initial=initial[trainer])
            publish(trainer.folder, run.into)
            return Run.open(run.into)

        with threads(len(trainers)) as each:
            return list(each(finish, trainers, runs))


def _may_share(configs: Sequence[Config]) -> bool:
    """Whether trainings differ in what one program allows, as far as can be said without their models."""
    slow = [dataclasses.replace(one.training, learning_rate=1e-9) for one in configs]  # which any decay goes with
    alike = [dataclasses.replace(one, training=training) for one, training in zip(configs, slow, strict=True)]
    own = alike[0].model.name not in BUILT_IN  # it may do what cannot be stacked, such as batch statistics
    same = all(one == alike[0] for one in alike) and alike[0].model.ensemble == 1
    return same and not own and choose_device(alike[0].training.device).type != "cpu"


def _spread(values: list[float]) -> dict[str, Any]:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "deviation": deviation, "values": values}
