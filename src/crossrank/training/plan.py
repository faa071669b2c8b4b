"""What a training was asked for, and whether that is what stands in a folder or can be had of a dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from crossrank.config import differences, parse, to_dict
from crossrank.data import EncodedDataset, SplitSettings
from crossrank.errors import ConfigError, DataError, listing
from crossrank.files import signed, write_json
from crossrank.folders import PLAN
from crossrank.runs.lifecycle import read_plan
from crossrank.training.defaults import fill_in
from crossrank.training.settings import Config


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """A run to be made; the words mean what they mean to :func:`train`."""

    into: Path
    config: Config
    seed: int
    on_evaluation: Callable[[int, dict[str, Any]], None] | None = None

    def __post_init__(self) -> None:
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"A seed must be a whole number of 64 bits; got {self.seed}.", hint="Take a smaller one.")


def facts(dataset: EncodedDataset, seed: int) -> dict[str, Any]:
    """What a run was trained with beside its config."""
    return {"seed": seed, "data_fingerprint": dataset.fingerprint}


def write_plan(folder: Path, run: Planned, dataset: EncodedDataset) -> None:
    """Note what is asked for, until the run itself says so."""
    write_json(folder / PLAN, signed({"config": run.config.to_dict(), **facts(dataset, run.seed)}))


def changes(saved: Mapping[str, Any] | None, config: Config, dataset: EncodedDataset, *, seed: int) -> str:
    """How a plan, if there is one, differs from what is asked for now, for a message; "" where it does not."""
    if saved is None:
        return ""
    before = Config.parse(saved["config"])  # which may have been written when there were fewer settings
    plans = [
        {**one.to_dict(), "split": {}, "seed": number}  # the split is part of the data
        for one, number in ((before, saved["seed"]), (config, seed))
    ]
    data = "" if saved["data_fingerprint"] == dataset.fingerprint else "the data were others"
    return " and ".join(filter(None, (differences(*plans), data)))


def check_resumed(folder: Path, run: Planned, dataset: EncodedDataset) -> None:
    """Refuse to go on with another training than the one in a folder."""
    if changed := changes(read_plan(folder), run.config, dataset, seed=run.seed):
        raise ConfigError(
            f"A resumed training must have the config, seed and data it began with; {changed}.",
            hint="Give the same ones, or train anew with --overwrite.",
        )


def check_distributed(config: Config) -> None:
    """Refuse what several processes do not train."""
    asked: dict[str, Any] = {"model.ensemble": config.model.ensemble, "training.memory": config.training.memory}
    asked |= {"training.variants": config.training.variants, "training.heads": config.training.heads}
    asked |= {"training.ramp": config.training.ramp}
    for key, value in asked.items():
        if value not in (1, "none", 0):
            raise ConfigError(
                f"A distributed training has one model with one loss on a dataset as it is; got {key}={value}.",
                hint=f"Leave {key} out, or train in one process.",
            )


def as_made(config: Config | Mapping[str, Any] | None, dataset: EncodedDataset, *, raw: bool = False) -> Config:
    """The config as it suits a dataset: with the split that it was made with, and where it is a mapping, with
    what was left out (:mod:`crossrank.training.defaults`).

    Raises:
        ConfigError: where another split is asked for, which cannot be had any more.
    """
    default = to_dict(SplitSettings())
    made = default | dataset.manifest.get("split", {})
    if isinstance(config, Config):
        asked = to_dict(config.split)
        written = [key for key in asked if asked[key] != default[key]]
    else:
        written = list((config or {}).get("split", {}))
        config = Config.parse(fill_in(config or {}, dataset, raw=raw))
        asked = to_dict(config.split)
    wrong = [key for key in written if asked[key] not in (made[key], "auto")]
    if wrong:
        had, got = (", ".join(f"split.{key}={values[key]!r}" for key in wrong) for values in (made, asked))
        raise ConfigError(
            f"The rows of {dataset.path} were divided when it was prepared, by {had}; got {got}.",
            hint="Leave the split out, or prepare the table anew with it.",
        )
    return dataclasses.replace(config, split=parse(SplitSettings, made, path="split"))


def check_splits(dataset: EncodedDataset, names: Sequence[str]) -> None:
    """Refuse a dataset that lacks rows of some of its splits, before a model is trained in vain."""
    rows = dataset.num_rows
    if any(name not in rows for name in names):
        got = ", ".join(f"{name} {rows.get(name, 0):,}" for name in names)
        raise DataError(
            f"A table must have rows for {listing(names)}; got {sum(rows.values()):,} rows in all ({got}).",
            hint="Give more rows, or other shares in split.fractions.",
        )
