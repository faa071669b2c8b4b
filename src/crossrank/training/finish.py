"""From a trained model to a complete run folder: what is measured of it, and what is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from crossrank.config import parse
from crossrank.data import SPLITS, EncodedDataset, SplitSettings
from crossrank.evaluation.evaluate import measure_split, score_split, worse_than_constant
from crossrank.evaluation.findings import write_findings
from crossrank.evaluation.metrics import sigmoid
from crossrank.evaluation.monotone import fit_monotone
from crossrank.files import write_json
from crossrank.models import Model, build_model
from crossrank.nn.embedding import embedding_layers
from crossrank.results import Spectrum
from crossrank.runs import write_run
from crossrank.runs.run import CALIBRATION
from crossrank.training.loss import is_order
from crossrank.training.plan import Planned, facts
from crossrank.training.prior import correct_prior
from crossrank.training.regression import start_at_mean
from crossrank.training.settings import Config
from crossrank.training.trainer import Trainer


def seeded_model(config: Config, dataset: EncodedDataset, seed: int) -> Model:
    torch.manual_seed(seed)
    model = build_model(config.model, dataset.features, num_outputs=dataset.schema.label.num_outputs)
    start_at_mean(model, dataset)
    correct_prior(model, dataset, config.training)
    with torch.no_grad():  # a cell says nothing until it is learned
        for i, slot in enumerate(model.layout.embedded):
            for table in model.tables() if slot.name in dataset.encoder.crosses else ():
                table.table(i).zero_()
    return model


def measured_splits(dataset: EncodedDataset, test: bool) -> tuple[str, ...]:
    """The splits that a training needs; a search that still has to choose goes without the test rows."""
    split = parse(SplitSettings, dataset.manifest.get("split", {}), path="split")
    without = "test" not in dataset.num_rows and split.may_lack_test
    return SPLITS[:2] if without or not test else SPLITS


def finish_run(
    trainer: Trainer, run: Planned, *, test: bool, initial: Sequence[Spectrum], more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Measure the trained model and write every file of the run into its folder; returns its report, with more."""
    dataset, position = trainer.dataset, trainer.position
    names = measured_splits(dataset, test)[1:]
    logits = {name: score_split(trainer.model, trainer.member.placed(dataset.split(name))) for name in names}
    trainer.member.close()
    cut_short = position.step == trainer.total_steps > (trainer.settings.eval_every or trainer.batches_per_epoch)
    training = {
        "steps": position.step,
        "best_step": position.best_step,
        "still_improving": cut_short and position.best_step == position.step,
        "epochs": position.step / trainer.batches_per_epoch,
        "seconds": position.seconds,
        "rows_per_second": position.rows / max(position.seconds, 1e-9),
    }
    about = {"training": training, **(more or {})}
    return complete_run(trainer.folder, run, trainer.model, dataset, logits, about, initial=initial)


def complete_run(
    folder: Path,
    run: Planned,
    model: Model,
    dataset: EncodedDataset,
    logits: Mapping[str, NDArray[Any]],
    about: Mapping[str, Any],
    *,
    initial: Sequence[Spectrum] = (),
) -> dict[str, Any]:
    """Write what is known of a trained model, from its answers to the measured splits; returns its report.

    The report has what is given ``about`` it, with its training.
    """
    label, kind, names = dataset.schema.label, dataset.schema.label.kind, list(logits)
    dataset.verify()
    report: dict[str, Any] = {name: measure_split(logits[name], dataset.split(name), label) for name in names}
    if problem := worse_than_constant(report["valid"], kind):
        about = {**about, "training": {**about["training"], "warning": problem}}
    report |= {**about, "parameters": count_parameters(model)}
    write_findings(folder, model, dataset, split=names[-1], initial=initial, logits=logits[names[-1]])
    if is_order(run.config.training.loss, kind):
        valid, scores = dataset.valid, logits["valid"]
        scores = sigmoid(scores) if kind == "binary" else scores  # as the run will answer
        write_json(folder / CALIBRATION, fit_monotone(valid.labels, scores, weights=valid.weights))
    info = {"rows": dataset.num_rows, **facts(dataset, run.seed)}
    write_run(folder, model=model, encoder=dataset.encoder, config=run.config.to_dict(), info=info, report=report)
    return report


def count_parameters(model: Model) -> dict[str, int]:
    """Weights in embedding tables, and in everything else."""
    tables = sum(layer.weight.numel() for layer in embedding_layers(model))
    return {"embedding": tables, "network": sum(p.numel() for p in model.parameters()) - tables}
