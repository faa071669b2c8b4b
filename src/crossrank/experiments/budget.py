"""Settings for a table, found on its validation rows within some minutes.

The first trial is what `train` fills in by itself. Each later one changes one to three settings of one of the three
best so far. A trial ends when it has taken as long as the best one did without having done better. The search ends
while there is still time for one more training, with the settings that it found. Test rows are never read.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from crossrank.config import differences, flatten
from crossrank.data import EncodedDataset
from crossrank.errors import ConfigError
from crossrank.evaluation.metrics import badness
from crossrank.experiments.space import put
from crossrank.schema import Schema
from crossrank.training import Config, train
from crossrank.training.plan import as_made
from crossrank.training.settings import without_tries
from crossrank.training.train import dataset_of
from crossrank.training.tries import is_asked, try_all

KNOBS: dict[str, tuple[Any, ...]] = {
    "training.learning_rate": (3e-4, 5e-4, 1e-3, 2e-3, 4e-3),
    "training.table_decay": (0.0, 0.1, 0.3, 1.0, 3.0),
    "training.l2": (0.0, 1e-5, 1e-4, 1e-3),
    "model.structure": ("stacked", "parallel"),
    "model.embedding.dim": (4, 8, 16, 32),
    "model.embedding.dropout": (0.0, 0.1, 0.2, 0.35, 0.5),
    "model.cross.num_layers": (1, 2, 3),
    "model.deep.sizes": ([64, 64], [256, 256], [512], [512, 512]),
    "model.deep.dropout": (0.0, 0.2, 0.4, 0.6),
}
LEADERS, MOST_CHANGES = 3, 3


class Trial(NamedTuple):
    """A setting, the best loss on the validation rows that it reached, and the seconds it took."""

    loss: float
    seconds: float
    config: Config


class _Enough(Exception):  # noqa: N818
    """Ends a trial."""


def find_settings(
    data: Any,
    *,
    minutes: float,
    config: Mapping[str, Any] | None = None,
    schema: Schema | None = None,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Settings for :func:`crossrank.train`, every one of them written out; those that were given stay. Where none does
    better than what is filled in, those that were given, and no others.

    Args:
        data: what `train` takes.
        minutes: to search, and to train once with what was found. One trial runs to its end whatever it takes.
        config: settings that are fixed, as nested mappings.
        schema: what the columns of a raw table mean; drafted from the table where it is left out.
        seed: of the trials.
        say: is told how it goes on.

    Raises:
        ConfigError: for no time, or where every setting that may be searched was given.
    """
    started, given = time.monotonic(), dict(config or {})
    if not minutes > 0:
        raise ConfigError(f"The minutes to search for settings must be more than 0; got {minutes}.")
    with tempfile.TemporaryDirectory(prefix="crossrank-") as folder:
        dataset = dataset_of(data, schema, Config.parse(given), Path(folder) / "dataset", progress=False)
        raw, trainings = dataset.path == Path(folder) / "dataset", 1
        ensemble = as_made(given, dataset, raw=raw).model.ensemble  # of the run; a trial is one model
        first = as_made(_alone(given), dataset, raw=raw)
        asked, alone = first.training, _alone(given)
        if is_asked(asked):
            place = Path(folder) / "tries"
            if found := try_all(dataset, alone, asked, place, schema=schema, seed=seed, progress=False):
                dataset, trainings = found.best.dataset, found.num_trainings
                alone = without_tries(alone, **found.best.model)
            first = as_made(without_tries(alone), dataset)
        written, known = flatten(given), flatten(first.to_dict())
        knobs = {key: values for key, values in KNOBS.items() if key in known and key not in written}
        if not knobs:
            raise ConfigError("Settings that are searched must be left out; all of them were given.")
        chance, trials = random.Random(seed), list[Trial]()
        ends, tried = started + 60 * minutes, first
        while True:
            trials.append(_try(tried, dataset, Path(folder), seed, trials, ends))
            trials.sort(key=lambda trial: trial.loss)
            best = trials[0]
            if len(trials) == 1 or tried is best.config:
                changed = differences(first.to_dict(), best.config.to_dict()) or "nothing changed"
                say(f"trial {len(trials)}: {best.loss:.5f}  {changed}")
            if time.monotonic() + (trainings + ensemble - 1) * best.seconds >= ends:
                break
            tried = _next(chance, trials, knobs)
    say(f"{len(trials)} trials in {(time.monotonic() - started) / 60:.1f} minutes")
    if best.config == first:
        return given
    values = best.config.to_dict()
    values["training"] |= {"variants": asked.variants, "memory": asked.memory}  # tried again with these settings
    values["model"]["ensemble"] = ensemble
    return {"model": values["model"], "training": values["training"], "split": given.get("split", {})}


def _alone(given: Mapping[str, Any]) -> dict[str, Any]:
    """One model of an ensemble."""
    return {**given, "model": {**given.get("model", {}), "ensemble": 1}}


def _next(chance: random.Random, trials: list[Trial], knobs: Mapping[str, tuple[Any, ...]]) -> Config:
    """One of the leaders with other values of some settings, and not one that was tried."""
    for _ in range(1000):
        values = chance.choice(trials[:LEADERS]).config.to_dict()
        before = flatten(values)
        for name in chance.sample(sorted(knobs), min(chance.randint(1, MOST_CHANGES), len(knobs))):
            put(values, name, chance.choice([one for one in knobs[name] if one != before[name]]))
        try:
            config = Config.parse(values)
        except ConfigError:  # such as rows that shrink faster than their average follows
            continue
        if all(config != trial.config for trial in trials):
            return config
    return trials[0].config


def _try(config: Config, dataset: EncodedDataset, folder: Path, seed: int, earlier: list[Trial], ends: float) -> Trial:
    """Train with a setting as long as it may still become the best."""
    started, losses = time.monotonic(), [float("inf")]
    criterion = config.training.criterion(dataset.schema.label.kind)

    def look(step: int, metrics: dict[str, Any]) -> None:
        losses.append(badness(metrics, criterion))
        now = time.monotonic()
        if earlier and ((now - started > earlier[0].seconds and min(losses) > earlier[0].loss) or now > ends):
            raise _Enough

    try:
        into = folder / f"trial-{len(earlier)}"
        train(dataset, into=into, config=config, seed=seed, test=False, progress=False, on_evaluation=look)
    except (_Enough, ConfigError):  # or it did not stay finite
        if not earlier and len(losses) == 1:
            raise
    return Trial(min(losses), time.monotonic() - started, config)
