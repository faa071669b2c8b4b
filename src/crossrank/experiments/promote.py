"""Give a trained model a memory of the pairs that it misses, where that pays.

1. The first epoch is trained once more, and each row's logit is taken before the row is learned. What a memory of each
   pair of columns would have added to these logits is its expected gain (:mod:`crossrank.evaluation.missed`).
2. The best pairs become columns (:class:`~crossrank.schema.Cross`), one after the other. The trained model goes on with
   each, from the same answers, and without, for several seeds; what does not lower the loss of the validation rows by
   more than two standard errors is dropped.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crossrank.data import EncodedDataset, Split
from crossrank.data.cell_codes import CellKeys
from crossrank.data.crossing import add_crosses
from crossrank.errors import ConfigError, RunError
from crossrank.evaluation.evaluate import score_split
from crossrank.evaluation.intervals import mean_and_error
from crossrank.evaluation.metrics import row_losses
from crossrank.evaluation.missed import Missed, rank_missed
from crossrank.files import writing
from crossrank.folders import MARK, locked, publish, remove
from crossrank.models import Model, build_model
from crossrank.models.widen import widen
from crossrank.runs import Run
from crossrank.runs.lifecycle import claim
from crossrank.schema import Cross
from crossrank.training import Config
from crossrank.training.engines import make_engine
from crossrank.training.finish import finish_run, seeded_model
from crossrank.training.plan import Planned, write_plan
from crossrank.training.prior import rows_to_learn
from crossrank.training.train import dataset_of
from crossrank.training.trainer import Trainer, train_models

LOOKS = 100  # at the weights during the first epoch
MOST_ROWS = 2_000_000  # of it
CHECKED_ROWS = 1000
CERTAIN = 2.0  # standard errors


@dataclasses.dataclass(frozen=True)
class Tried:
    """A pair that was added: what it was expected to gain, and what it did on the validation rows, with its error."""

    columns: tuple[str, ...]
    expected: float
    gain: float
    error: float

    @property
    def pays(self) -> bool:
        return self.gain > CERTAIN * self.error


@dataclasses.dataclass(frozen=True)
class Promotion:
    """What promoting a run found.

    Attributes:
        run: the new run, opened; None where no pair pays, and then nothing was made.
        missed: every pair by its expected gain, the largest first.
        tried: those that were added, in that order.
    """

    run: Run | None
    missed: list[Missed]
    tried: list[Tried]

    def to_dict(self) -> dict[str, Any]:
        return {
            "missed": [one._asdict() for one in self.missed],
            "tried": [dataclasses.asdict(one) | {"pays": one.pays} for one in self.tried],
        }


def promote(
    run: Run | Path | str,
    data: Any,
    *,
    into: Path | str,
    seeds: int = 5,
    most: int = 3,
    overwrite: bool = False,
    progress: bool | None = None,
) -> Promotion:
    """Find the pairs of columns that a run misses, and go on training with a memory of those that pay.

    Args:
        run: of a model that reads all features from x0, such as DCN-V2.
        data: what the run was trained on: a dataset, or the raw table.
        into: the run folder to make.
        seeds: how many times each comparison is made.
        most: how many pairs are tried.
        overwrite: replace a run of that name, once the new one is complete.
        progress: show bars; ``None`` for on a terminal only.

    Raises:
        ConfigError: for other data than the run's, or a model that cannot go on with more features.
        RunError: where ``into`` exists.
    """
    run, into = run if isinstance(run, Run) else Run.open(run), Path(into)
    if seeds < 1 or most < 1:
        raise ConfigError(f"seeds and most must be at least 1; got {seeds} and {most}.")
    if run.schema.label.kind in ("classes", "grade", "tasks"):
        raise ConfigError(
            f"A run is promoted whose label has two classes or is a number; got the kind {run.schema.label.kind}."
        )
    if len(run.model.members) > 1:
        raise ConfigError(
            f"A run is promoted that is one model; got an ensemble of {len(run.model.members)}.",
            hint="Train with --ensemble 1 first; where it reads a table, `train` tries memories of pairs by itself.",
        )
    config, devices = Config.parse(run.config), range(torch.cuda.device_count())
    with writing(into, RunError), locked(into, RunError), torch.random.fork_rng(devices=devices):
        folder = claim(into, resume=False, overwrite=overwrite)
        try:
            dataset = dataset_of(data, run.schema, config, folder / "data", progress=progress, like=run.encoder)
            if dataset.encoder.fingerprint != run.encoder.fingerprint:
                raise ConfigError(f"{dataset.path} must be what the run {run.path} was trained on; it is not.")
            missed = find_missed(config, dataset, seed=run.info["seed"])
            chosen = [one for one in missed if one.gain > CERTAIN * one.error][:most]
            each = [run.info["seed"] + 1 + number for number in range(seeds)]
            arms = _Arms(run, _fixed_rank(run, config), dataset, folder / "arms", each, progress)
            promotion, best = Promotion(None, missed, []), None
            for one in chosen:
                best, tried = arms.compare(best, one)
                promotion.tried.append(tried)
            if best is not None and best.crosses:
                _write(into, run, best, promotion)
                promotion = dataclasses.replace(promotion, run=Run.open(into))
        finally:
            remove(folder)
    return promotion


def find_missed(config: Config, dataset: EncodedDataset, *, seed: int) -> list[Missed]:
    """Every pair of columns by what a memory of it would add to the first epoch's logits."""
    rows, logits = logits_before_learning(config, dataset, seed=seed)
    kind, labels = dataset.schema.label.kind, np.asarray(dataset.train.labels[rows], np.float64)
    scale = float(labels.std()) or 1.0 if kind == "real" else 1.0
    base = dataset.encoder.with_crosses([])
    names = [feature.column for feature in base.features if feature.kind == "categorical"]
    taken = {frozenset(cross.of) for cross in dataset.schema.crosses}
    ids = dataset.train.categorical[rows]
    pairs = [pair for pair in combinations(names, 2) if frozenset(pair) not in taken]
    cells = ((pair, CellKeys.of(pair, base.features).keys(ids)) for pair in pairs)
    return rank_missed(logits / scale, labels / scale, cells, kind=kind)


def logits_before_learning(
    config: Config, dataset: EncodedDataset, *, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The training rows in the order of the first epoch, and what a new model answers to each before it learns it."""
    split, size = dataset.train, config.training.batch_size
    model = seeded_model(config, dataset, seed)
    engine = make_engine(model, rows_to_learn(dataset, model, config.training), config.training, seed=seed)
    member, order, num_rows = engine.members[0], split.order(seed, 0), min(len(split), MOST_ROWS)
    every = max(split.num_batches(size) // LOOKS, 1)
    places, logits = [], []
    model.train()
    for number, batch in enumerate(engine.batches(0, 0)):
        if number * size >= num_rows:
            break
        if number % every == 0:
            places.append(order.rows(number * size, min((number + every) * size, num_rows)))
            rows = Split(split.rows.take(places[-1]))
            with member.using(averaged=False):
                logits.append(score_split(model, member.placed(rows)))
        engine.step(batch)
    member.close()
    return np.concatenate(places), np.concatenate(logits)


@dataclasses.dataclass
class _Arm:
    """Trainings that went on with some crosses: the first seed's, and the loss of each validation row by seed."""

    crosses: list[Cross]
    dataset: EncodedDataset
    trainer: Trainer
    planned: Planned
    losses: NDArray[np.float64]  # (seeds, rows)


@dataclasses.dataclass(frozen=True)
class _Arms:
    """Goes on training a run, with crosses and without."""

    run: Run
    config: Config
    dataset: EncodedDataset
    folder: Path
    seeds: Sequence[int]
    progress: bool | None

    def compare(self, best: _Arm | None, one: Missed) -> tuple[_Arm, Tried]:
        """The better of the best so far and the same with one more pair, and what that gained."""
        weights = self.dataset.valid.weights
        arm = self.train([*(best.crosses if best else []), Cross(of=one.columns)])
        best = best or self.train([])
        gains = best.losses - arm.losses  # (seeds, rows)
        gain, error = mean_and_error(gains.mean(axis=0), weights)
        by_seed = [mean_and_error(row, weights)[0] for row in gains]
        between = float(np.std(by_seed, ddof=1)) / math.sqrt(len(by_seed)) if len(by_seed) > 1 else 0.0
        tried = Tried(one.columns, one.gain, gain, math.hypot(error, between))
        kept, left = (arm, best) if tried.pays else (best, arm)
        left.trainer.member.close()
        return kept, tried

    def train(self, crosses: list[Cross]) -> _Arm:
        """The run gone on with, from its own answers, once for each seed."""
        dataset = add_crosses(self.dataset, crosses, self._next("dataset")) if crosses else self.dataset
        trainers = list(self._trained(dataset))
        return _Arm(crosses, dataset, *trainers[0][:2], np.stack([losses for *_, losses in trainers]))

    def _trained(self, dataset: EncodedDataset) -> Iterator[tuple[Trainer, Planned, NDArray[np.float64]]]:
        kind, settings = dataset.schema.label.kind, self.config.training
        for seed in self.seeds:
            torch.manual_seed(seed)
            model = self._start(dataset)
            engine = make_engine(model, rows_to_learn(dataset, model, settings), settings, seed=seed)
            folder = self._next(f"seed-{seed}")
            folder.mkdir()
            planned = Planned(into=folder, config=self.config, seed=seed)
            write_plan(folder, planned, dataset)
            trainer = Trainer(engine.members[0], dataset, settings, folder=folder)
            trainer.evaluate()  # where it comes from is what it has to be better than
            for error in train_models(engine, [trainer], show_progress=self.progress).values():
                raise error
            logits = score_split(model, trainer.member.placed(dataset.valid)).astype(np.float64)
            labels = np.asarray(dataset.valid.labels, np.float64)
            yield trainer, planned, row_losses(labels, logits, kind)
            if seed != self.seeds[0]:
                trainer.member.close()

    def _start(self, dataset: EncodedDataset) -> Model:
        """A model of the dataset's features that answers as the run does."""
        model = build_model(self.config.model, dataset.features, num_outputs=dataset.schema.label.num_outputs)
        widen(self.run.model, model)
        rows = np.arange(min(len(dataset.valid), CHECKED_ROWS))
        before, after = (
            one.predict_logits([data.valid.take(rows).features])
            for one, data in ((self.run.model, self.dataset), (model, dataset))
        )
        if not torch.allclose(after, before, rtol=1e-4, atol=1e-4 * float(before.std(correction=0))):
            raise ConfigError(
                f"A model that is given crosses must begin with the answers it had; {type(model).__name__} does not.",
                hint="Train dcn-v2, dcn-mix, cross-net, cross-net-mix, dcn or dnn.",
            )
        return model

    def _next(self, name: str) -> Path:
        self.folder.mkdir(exist_ok=True)
        return self.folder / f"{len(list(self.folder.iterdir()))}-{name}"


def _fixed_rank(run: Run, config: Config) -> Config:
    """The config with the rank that cross layers have, where it would follow the width of x0."""
    values = copy.deepcopy(run.config)
    for _, _, layer in run.model.cross_layers():
        if hasattr(layer, "rank"):
            values["model"]["cross"]["rank"] = layer.rank
    return dataclasses.replace(config, model=Config.parse(values).model)


def _write(into: Path, run: Run, best: _Arm, promotion: Promotion) -> None:
    """Make the best training's first seed a run folder."""
    found = {"promotion": {"source": run.path.name, "seeds": len(best.losses), **promotion.to_dict()}}
    test = "test" in best.dataset.num_rows
    finish_run(best.trainer, best.planned, test=test, initial=run.spectrum, more=found)
    (best.trainer.folder / MARK).touch()
    publish(best.trainer.folder, into)
