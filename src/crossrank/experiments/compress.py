"""A trained full-rank cross network as a low-rank one: smaller, faster, nearly as good, and measured.

Each matrix W becomes ``up @ down`` of rank R (Eq. 2), its truncated singular value decomposition. Where a dataset is
given, the one that is nearest to W as the data uses it (:mod:`crossrank.evaluation.spectrum`): the plain one wastes its
rank on directions that no row takes, and random initial weights leave plenty of those.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import shutil
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import crossrank
from crossrank.config import parse
from crossrank.data import EncodedDataset
from crossrank.errors import ConfigError, RunError
from crossrank.evaluation.crosses import sample, trace
from crossrank.evaluation.evaluate import evaluate_split
from crossrank.evaluation.findings import write_findings
from crossrank.evaluation.spectrum import Usage, energy_rank, low_rank_factors, usage
from crossrank.files import publish, writing
from crossrank.models import Model, build_model, parse_model_settings
from crossrank.models.cost import model_cost
from crossrank.nn import Bag, CrossLayer, Features
from crossrank.runs import Run, write_run
from crossrank.runs.run import describe_machine
from crossrank.training import TrainingSettings
from crossrank.training.train import count_parameters
from crossrank.training.trainer import CRITERIA, Trainer

TOLERANCE = 2e-4  # of validation log loss; what is chosen on one split is a little worse on another
ENERGY = 0.999
BATCHES = (1, 256)
FINETUNE_RATE = 0.1  # of the learning rate that the run was trained with

Factors = dict[str, tuple[Tensor, Tensor]]


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
    finetune_steps: int = 0,
    overwrite: bool = False,
) -> Compression:
    """Turn a trained full-rank DCN-V2 into a low-rank one.

    Args:
        run: whose cross layers are full matrices.
        into: the run folder to make; an ordinary one.
        rank: of every cross layer; ``"auto"`` for the smallest whose log loss on the validation rows is at most 0.0002
            higher (rmse for a number), or without a dataset for the smallest that keeps 99.9% of each matrix's energy.
        dataset: the one the run was trained on; it decides which directions count, and what is measured.
        finetune_steps: steps to train the compressed model, at a tenth of the learning rate; kept where they help.
        overwrite: replace a run of that name, once the new one is complete.

    Raises:
        ConfigError: for a model without full cross layers, a rank that saves nothing, or fine-tuning without a dataset.
        RunError: where ``into`` exists.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    dataset = EncodedDataset.open(dataset) if isinstance(dataset, str | Path) else dataset
    into = Path(into)
    if into.exists() and not (overwrite and (into / "run.json").is_file()):
        raise RunError(f"The run folder {into} must not exist yet; it does.", hint="Choose another name.")
    _check(run, rank, dataset, finetune_steps)
    factors = _factors(run.model, dataset)
    chosen = _choose(run, factors, dataset) if rank == "auto" else rank
    config, model = _narrowed(run, factors, chosen)
    partial = into.with_name(into.name + ".partial")
    with writing(into, RunError):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / "metrics.jsonl").touch()
        if dataset is not None and finetune_steps:
            model = _finetune(model, run, dataset, finetune_steps, partial)
        before, after = _compare(run, model, config, dataset)
        comparison = {"source": run.path.name, "rank": chosen, "before": before, "after": after}
        _write(partial, run, model, config, dataset, comparison)
        publish(partial, into)
    return Compression(Run.open(into), chosen, before, after)


def _check(run: Run, rank: int | str, dataset: EncodedDataset | None, finetune_steps: int) -> None:
    layers = [layer for network in run.model.cross_networks() for layer in network.layers]
    if not layers or not all(isinstance(layer, CrossLayer) for layer in layers):
        kind = run.config["model"].get("cross", {}).get("layer", "no")
        raise ConfigError(
            f"Only full-rank cross layers can be compressed; {run.path} has {kind} cross layers of its own.",
            hint="Train dcn-v2 or cross-net with model.cross.layer=full.",
        )
    largest = _largest_rank(run.model)
    if rank != "auto" and not 1 <= int(rank) <= largest:
        raise ConfigError(
            f"rank must be from 1 to {largest}, half of the input width, to save anything; got {rank}.",
            hint="Leave it to --rank auto.",
        )
    if finetune_steps and dataset is None:
        raise ConfigError("Fine-tuning needs the dataset that the run was trained on; got none.")
    if dataset is not None and dataset.encoder.fingerprint != run.encoder.fingerprint:
        raise ConfigError(f"The dataset {dataset.path} must be encoded as the run's was; its encoder is another.")


def _largest_rank(model: Model) -> int:
    return max(1, (model.layout.input_dim - 1) // 2)


def _factors(model: Model, dataset: EncodedDataset | None) -> Factors:
    """up and down of each cross layer at the largest rank; their first columns and rows are those of smaller ones."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, CrossLayer)}
    seen = trace(model, sample(dataset.train)) if dataset is not None else None
    factors = {}
    for name, layer in layers.items():
        weight = layer.weight.detach()
        eye = torch.eye(len(weight), dtype=torch.float64)
        matrix = Usage(eye, weight.double(), eye) if seen is None else usage(weight, *seen[layer])
        factors[name] = low_rank_factors(matrix, _largest_rank(model))
    return factors


def _choose(run: Run, factors: Factors, dataset: EncodedDataset | None) -> int:
    """The smallest rank that is good enough."""
    largest = _largest_rank(run.model)
    if dataset is None:
        weights = [run.model.get_submodule(name).get_parameter("weight") for name in factors]
        needed = max(energy_rank(torch.linalg.svdvals(weight.detach()).tolist(), ENERGY) for weight in weights)
        if needed > largest:
            raise ConfigError(
                f"A rank up to {largest}, half of the width, must keep {ENERGY:.1%} of the energy; it takes {needed}.",
                hint="Give the dataset, so that only what the data uses counts, or a rank.",
            )
        return needed
    criterion = CRITERIA[run.schema.label.kind]
    best = _measure(run, run.model, dataset, "valid")[criterion]
    worst = best
    for rank in _candidates(largest):
        worst = _measure(run, _narrowed(run, factors, rank)[1], dataset, "valid")[criterion]
        if worst <= best + TOLERANCE:
            return rank
    raise ConfigError(
        f"A rank up to {largest} must keep the validation {criterion} within {TOLERANCE} of {best:.5f}; "
        f"rank {largest} has {worst:.5f}.",
        hint=f"Try --rank {largest} with fine-tuning, or keep the full matrices.",
    )


def _candidates(largest: int) -> list[int]:
    """1, 2, 3, … growing by about an eighth."""
    ranks = [1]
    while ranks[-1] < largest:
        ranks.append(min(largest, ranks[-1] + max(1, ranks[-1] // 8)))
    return ranks


def _narrowed(run: Run, factors: Mapping[str, tuple[Tensor, Tensor]], rank: int) -> tuple[dict[str, Any], Model]:
    """The config and the model with low-rank layers in place of the full ones."""
    config = copy.deepcopy(run.config)
    config["model"]["cross"] |= {"layer": "low_rank", "rank": rank}
    model = build_model(parse_model_settings(config["model"]), run.encoder.features)
    weights = dict(run.model.state_dict())
    for name, (up, down) in factors.items():
        del weights[f"{name}.weight"]
        weights |= {f"{name}.up": up[:, :rank].float(), f"{name}.down": down[:rank].float()}
    model.load_state_dict(weights)
    return config, model.eval()


def _finetune(model: Model, run: Run, dataset: EncodedDataset, steps: int, folder: Path) -> Model:
    """The model after some steps of training, or as it was where they did not help on the validation rows."""
    settings = parse(TrainingSettings, run.config["training"], path="training")
    settings = dataclasses.replace(
        settings,
        learning_rate=settings.learning_rate * FINETUNE_RATE,
        epochs=steps,
        max_steps=steps,
        eval_every=max(1, steps // 5),
        patience=0,
    )
    tuned = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.info["seed"])
        Trainer(tuned, dataset, settings, seed=run.info["seed"], folder=folder).train()
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    criterion = CRITERIA[run.schema.label.kind]
    before, after = (_measure(run, each, dataset, "valid")[criterion] for each in (model, tuned))
    return tuned.eval() if after < before else model


def _compare(run: Run, model: Model, config: dict[str, Any], dataset: EncodedDataset | None) -> list[dict[str, Any]]:
    """Cost, time and, where there are rows, quality: of the run and of the narrower model."""
    found = []
    models, configs = [run.model, model], [run.config, config]
    for each, settings, milliseconds in zip(models, configs, measure_latency(models), strict=True):
        cost = model_cost(parse_model_settings(settings["model"]), run.encoder.features)
        quality = {}
        if dataset is not None:
            quality = {split: _measure(run, each, dataset, split) for split in dataset.num_rows if split != "train"}
        work = {"parameters": cost.network_parameters, "multiply_adds": sum(cost.multiply_adds.values())}
        found.append({**work, "milliseconds": milliseconds, **quality})
    return found


def _measure(run: Run, model: Model, dataset: EncodedDataset, split: str) -> dict[str, Any]:
    return evaluate_split(model, dataset.split(split), label_kind=run.schema.label.kind)


@torch.inference_mode()
def measure_latency(models: list[Model], *, repeats: int = 50) -> list[dict[int, float]]:
    """Median milliseconds of a forward pass by batch size, the models taking turns."""
    found: list[dict[int, float]] = [{} for _ in models]
    for size in BATCHES:
        seconds: list[list[float]] = [[] for _ in models]
        for _ in range(5 + repeats):
            for model, times in zip(models, seconds, strict=True):
                rows = _blank(model, size)
                start = time.perf_counter()
                model(rows)
                times.append(time.perf_counter() - start)
        for answer, times in zip(found, seconds, strict=True):
            answer[size] = 1e3 * statistics.median(times[5:])  # the first ones warm up
    return found


def _blank(model: Model, num_rows: int) -> Features:
    """Rows of missing values."""
    of_kind = model.layout.of_kind
    bag = Bag(torch.zeros(num_rows, dtype=torch.int32), torch.arange(num_rows + 1))
    ids = torch.zeros(num_rows, len(of_kind("categorical")), dtype=torch.int32)
    return Features(ids, torch.zeros(num_rows, len(of_kind("numeric"))), (bag,) * len(of_kind("multivalent")))


def _write(
    folder: Path,
    run: Run,
    model: Model,
    config: dict[str, Any],
    dataset: EncodedDataset | None,
    comparison: dict[str, Any],
) -> None:
    after = comparison["after"]
    report = {
        **{split: after[split] for split in ("valid", "test") if split in after},
        "training": run.report["training"],
        "parameters": count_parameters(model),
        "compression": comparison,
    }
    info = {key: run.info[key] for key in ("seed", "data_fingerprint")} | {
        "library_version": crossrank.__version__,
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "machine": describe_machine(),
    }
    if dataset is not None:
        write_findings(folder, model, dataset, split=list(dataset.num_rows)[-1])
    write_run(folder, model=model, encoder=run.encoder, config=config, info=info, report=report)
