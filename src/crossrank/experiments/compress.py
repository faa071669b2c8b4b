"""A trained full-rank cross network as a low-rank one: smaller, faster, nearly as good, and measured.

Each matrix W becomes ``up @ down`` of rank R (Eq. 2). Without data that is W's truncated singular value decomposition.
With data it is the one nearest to W as the data uses it (:mod:`crossrank.evaluation.spectrum`), for the plain one
wastes its rank on directions that no row takes; then some steps of fine-tuning bring the narrow model's logits nearer
to the full one's, on training rows but without their labels, so that nothing is learned anew and nothing overfitted.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from crossrank.data import Batch, EncodedDataset, Split
from crossrank.errors import ConfigError, RunError
from crossrank.evaluation.crosses import sample, trace
from crossrank.evaluation.evaluate import evaluate_split, score_split
from crossrank.evaluation.findings import write_findings
from crossrank.evaluation.intervals import mean_and_error
from crossrank.evaluation.metrics import row_losses
from crossrank.evaluation.spectrum import Usage, energy_rank, low_rank_factors, usage
from crossrank.experiments.latency import BATCHES, measure_latency
from crossrank.folders import making, publish, recover
from crossrank.models import Model, build_model, parse_model_settings
from crossrank.models.cost import model_cost
from crossrank.nn import CrossLayer, LowRankCrossLayer
from crossrank.nn.cross_base import label_of
from crossrank.runs import Run, write_run
from crossrank.runs.lifecycle import check_free
from crossrank.schema import LabelKind
from crossrank.training import TrainingSettings
from crossrank.training.checkpoint import Position
from crossrank.training.finish import count_parameters
from crossrank.training.loss import SquaredError
from crossrank.training.processor import ProcessorEngine
from crossrank.training.rule import UpdateRule
from crossrank.training.trainer import take_steps

TOLERANCE = 5e-4  # of validation log loss, its standard error included
ENERGY = 0.999
BATCH_SIZE, LEARNING_RATE = 512, 3e-3  # of fine-tuning

Factors = dict[str, tuple[Tensor, Tensor]]
Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Compression:
    """A compressed run beside the run it came from.

    Attributes:
        run: the compressed one, opened.
        rank: of its cross layers.
        before, after: ``parameters`` outside the tables, ``multiply_adds`` per row, ``milliseconds`` of a batch by its
            size, and, where a dataset was given, the metrics of ``valid`` and ``test``.
    """

    run: Run
    rank: int
    before: dict[str, Any]
    after: dict[str, Any]

    @property
    def speedup(self) -> dict[int, float]:
        """By batch size, the old time over the new one."""
        return {size: self.before["milliseconds"][size] / self.after["milliseconds"][size] for size in BATCHES}


def compress(
    run: Run | Path | str,
    *,
    into: Path | str,
    rank: int | Literal["auto"] = "auto",
    dataset: EncodedDataset | Path | str | None = None,
    finetune_steps: int = 200,
    overwrite: bool = False,
) -> Compression:
    """Turn a trained full-rank DCN-V2 into a low-rank one.

    Args:
        run: whose cross layers are full matrices.
        into: the run folder to make; an ordinary one.
        rank: of every cross layer; ``"auto"`` for the smallest tried whose log loss on the validation rows is at most
            0.0005 higher (0.05% of the squared error, for a number), or without a dataset for the smallest that keeps
            99.9% of each matrix's energy.
        dataset: the one the run was trained on; it decides which directions count, and what is measured.
        finetune_steps: steps of fine-tuning, where there is a dataset.
        overwrite: replace a run of that name, once the new one is complete.

    Raises:
        ConfigError: for a model without full cross layers, another dataset, or a rank that saves nothing.
        RunError: where ``into`` exists.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    dataset = EncodedDataset.open(dataset) if isinstance(dataset, str | Path) else dataset
    into = Path(into)
    recover(into)
    check_free(into, resume=False, overwrite=overwrite)
    _check(run, rank, dataset)
    with making(into, RunError) as folder, torch.random.fork_rng(devices=[]):
        factors = _factors(run.model, dataset)
        if dataset is None:
            chosen = _by_energy(run.model) if rank == "auto" else rank
            model = _narrowed(run, factors, chosen)
        else:
            chosen, model = _by_quality(run, factors, dataset, rank, finetune_steps)
        before, after = _compare(run, model, chosen, dataset)
        _write(folder, run, model, chosen, dataset, {"before": before, "after": after})
        publish(folder, into)
    return Compression(Run.open(into), chosen, before, after)


def _check(run: Run, rank: int | str, dataset: EncodedDataset | None) -> None:
    if run.schema.label.kind in ("classes", "grade", "tasks"):
        raise ConfigError(
            "A model is compressed whose label has two classes or is a number; got the kind "
            f"{run.schema.label.kind} in {run.path}."
        )
    layers = [layer for _, _, layer in run.model.cross_layers()]
    chosen = run.config["model"].get("cross", {}).get("layer")  # what a narrower model is built from
    if chosen != "full" or not all(type(layer) is CrossLayer for layer in layers):
        kinds = ", ".join(sorted(set(map(label_of, layers)))) or "no"
        raise ConfigError(
            f"Only full-rank cross layers that model.cross describes can be compressed; got {kinds} cross layers "
            f"in {run.path}.",
            hint="Train dcn-v2 or cross-net with model.cross.layer=full.",
        )
    largest = _largest_rank(run.model)
    if rank != "auto" and not 1 <= int(rank) <= largest:
        raise ConfigError(
            f"rank must be from 1 to {largest}, half of the input width, to save anything; got {rank}.",
            hint="Leave it to --rank auto.",
        )
    if dataset is not None and dataset.encoder.fingerprint != run.encoder.fingerprint:
        raise ConfigError(f"The dataset {dataset.path} must be encoded as the run's was; its encoder is another.")


def _largest_rank(model: Model) -> int:
    return max(1, (model.layout.input_dim - 1) // 2)


def _factors(model: Model, dataset: EncodedDataset | None) -> Factors:
    """up and down of each cross layer at the largest rank; their first columns and rows are those of smaller ones."""
    seen = trace(model, sample(dataset.train)) if dataset is not None else None
    factors = {}
    for name, layer in _full_layers(model).items():
        weight = layer.weight.detach()
        eye = torch.eye(len(weight), dtype=torch.float64)
        matrix = Usage(eye, weight.double(), eye) if seen is None else usage(weight, *seen[layer][:3])
        factors[name] = low_rank_factors(matrix, _largest_rank(model))
    return factors


def _full_layers(model: Model) -> dict[str, CrossLayer]:
    return {name: layer for name, layer in model.named_modules() if type(layer) is CrossLayer}


def _by_energy(model: Model) -> int:
    """The smallest rank that keeps enough of every matrix."""
    weights = [layer.weight.detach() for layer in _full_layers(model).values()]
    rank = max(energy_rank(torch.linalg.svdvals(weight).tolist(), ENERGY) for weight in weights)
    if rank > _largest_rank(model):
        raise ConfigError(
            f"A rank up to {_largest_rank(model)}, half of the width, must keep {ENERGY:.1%} of the energy; "
            f"it takes {rank}.",
            hint="Give the dataset, so that only what the data uses counts, or a rank.",
        )
    return rank


def _by_quality(
    run: Run, factors: Factors, dataset: EncodedDataset, rank: int | Literal["auto"], finetune_steps: int
) -> tuple[int, Model]:
    """The model of the given rank, or of the smallest one tried that is good enough."""
    if rank != "auto":
        return rank, _finetuned(_narrowed(run, factors, rank), run.model, dataset, finetune_steps)
    kind = run.schema.label.kind
    full = _losses(run.model, dataset.valid, kind)
    allowed = TOLERANCE * (1.0 if kind == "binary" else mean_and_error(full, dataset.valid.weights)[0])
    excess, error = math.nan, math.nan
    for candidate in _candidates(_largest_rank(run.model)):
        model = _finetuned(_narrowed(run, factors, candidate), run.model, dataset, finetune_steps)
        excess, error = mean_and_error(_losses(model, dataset.valid, kind) - full, dataset.valid.weights)
        if excess + error <= allowed:
            return candidate, model
    raise ConfigError(
        f"The validation loss of a rank up to {_largest_rank(run.model)} must be at most {allowed:.5f} higher; "
        f"it is {excess:.5f} ± {error:.5f}.",
        hint="Give a rank, allow more steps of fine-tuning, or keep the full matrices.",
    )


def _candidates(largest: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, … and the largest.

    >>> _candidates(20)
    [1, 2, 3, 4, 6, 8, 12, 16, 20]
    """
    steps = [1, *(size * half // 2 for size in (2**power for power in range(1, 30)) for half in (2, 3))]
    return [*(rank for rank in steps if rank < largest), largest]


def _losses(model: Model, rows: Split, kind: LabelKind) -> Floats:
    """The loss of each row. Shape: (N,)."""
    return row_losses(np.asarray(rows.labels, np.float64), score_split(model, rows).astype(np.float64), kind)


def _narrowed_config(run: Run, rank: int) -> dict[str, Any]:
    config = copy.deepcopy(run.config)
    config["model"]["cross"] |= {"layer": "low_rank", "rank": rank}
    return config


def _narrowed(run: Run, factors: Factors, rank: int) -> Model:
    """The model with low-rank layers in place of the full ones."""
    model = build_model(parse_model_settings(_narrowed_config(run, rank)["model"]), run.encoder.features)
    weights = dict(run.model.state_dict())
    for name, (up, down) in factors.items():
        del weights[f"{name}.weight"]
        weights |= {f"{name}.up": up[:, :rank].float(), f"{name}.down": down[:rank].float()}
    model.load_state_dict(weights)
    return model.eval()


def _finetuned(model: Model, full: Model, dataset: EncodedDataset, steps: int) -> Model:
    """The model after steps towards the full one's logits; only its cross layers move."""
    settings = TrainingSettings(
        batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        schedule="cosine",
        clip_norm=0.0,
        average_decay=0.0,
        tables="dense",
        precision="float32",
    )
    layers = [module for module in model.modules() if isinstance(module, LowRankCrossLayer)]
    moving = {id(weight) for layer in layers for weight in layer.parameters()}
    for weight in model.parameters():
        weight.requires_grad_(id(weight) in moving)
    rule = UpdateRule(settings, total_steps=steps)
    engine = TowardsLogits(model, dataset.train, settings, loss=SquaredError(), rule=rule, seed=0, full=full)
    batches = dataset.train.num_batches(BATCH_SIZE)
    for _ in take_steps(engine, Position(), total_steps=steps, batches_per_epoch=batches):
        pass
    engine.close()
    return model.requires_grad_()


@dataclasses.dataclass(eq=False, kw_only=True)
class TowardsLogits(ProcessorEngine):
    """Steps whose labels are another model's logits."""

    full: Model

    def batches(self, epoch: int, start_batch: int) -> Iterator[Batch]:
        for batch in super().batches(epoch, start_batch):
            with torch.no_grad():
                logits = self.full(batch.features)
            yield dataclasses.replace(batch, labels=logits)


def _compare(run: Run, model: Model, rank: int, dataset: EncodedDataset | None) -> list[dict[str, Any]]:
    """Cost, time and, where there are rows, quality: of the run and of the narrower model."""
    found = []
    models, configs = [run.model, model], [run.config, _narrowed_config(run, rank)]
    for each, config, milliseconds in zip(models, configs, measure_latency(models), strict=True):
        cost = model_cost(parse_model_settings(config["model"]), run.encoder.features)
        work = {"parameters": cost.network_parameters, "multiply_adds": sum(cost.multiply_adds.values())}
        splits = {} if dataset is None else {name: dataset.split(name) for name in dataset.num_rows if name != "train"}
        quality = {name: evaluate_split(each, split, run.schema.label) for name, split in splits.items()}
        found.append({**work, "milliseconds": milliseconds, **quality})
    return found


def _write(
    folder: Path, run: Run, model: Model, rank: int, dataset: EncodedDataset | None, comparison: dict[str, Any]
) -> None:
    """Write every file of the run folder."""
    (folder / "metrics.jsonl").touch()
    after = comparison["after"]
    report = {
        **{split: after[split] for split in ("valid", "test") if split in after},
        "training": run.report["training"],
        "parameters": count_parameters(model),
        "compression": {"source": run.path.name, "rank": rank, **comparison},
    }
    info = {key: run.info[key] for key in ("seed", "data_fingerprint")}
    if dataset is not None:
        write_findings(folder, model, dataset, split=list(dataset.num_rows)[-1])
    config = _narrowed_config(run, rank)
    write_run(folder, model=model, encoder=run.encoder, config=config, info=info, report=report)
