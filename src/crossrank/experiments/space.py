"""What a search may change: choices and ranges for settings.

A space is two tables: ``fixed``, a config as `crossrank train` takes it, and ``search``, which has under the name of a
setting instead of its value

- a list of values, ``model.cross.num_layers = [1, 2, 3]``; the text "left out" leaves the setting out,
- a range, ``training.learning_rate = {low = 1e-4, high = 1e-1, log = true}``, of whole numbers where both ends are,
- or equal layers, ``model.deep.sizes = {layers = [1, 2], size = [64, 128]}``, of which both are searched.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from crossrank.config import load_toml
from crossrank.errors import ConfigError, did_you_mean, listing
from crossrank.models import MODELS
from crossrank.shapes import checked

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

LEFT_OUT = "left out"
LAYERS, SIZE = ":layers", ":size"  # endings of the two parameters that equal layers have
PAD = 1.5  # how far, as a factor, a narrowed range reaches past the best values


class _Ends(TypedDict):
    low: int | float
    high: int | float
    log: NotRequired[bool]


class _Layers(TypedDict):
    layers: list[int]
    size: list[int]


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of some values; text as JSON for the sampler, which knows no lists."""

    values: tuple[Any, ...]

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution([json.dumps(value) for value in self.values])

    def written(self, value: Any) -> Any:
        return json.dumps(value)

    def read(self, value: Any) -> Any:
        return json.loads(value)

    def holds(self, value: Any) -> bool:
        return value in self.values

    def narrowed(self, best: Sequence[Any]) -> Choice:
        return Choice(tuple(value for value in self.values if value in best))


@dataclasses.dataclass(frozen=True)
class Range:
    """A number between two, both included."""

    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import FloatDistribution, IntDistribution

        kind = IntDistribution if self.whole else FloatDistribution
        return kind(self.low, self.high, log=self.log)  # type: ignore[arg-type]

    def written(self, value: Any) -> Any:
        return value

    def read(self, value: Any) -> Any:
        return value

    def holds(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)

    def narrowed(self, best: Sequence[Any]) -> Range:
        """Around the best values, on a linear scale."""
        low, high = max(self.low, min(best) / PAD), min(self.high, max(best) * PAD)
        return Range(int(low), int(high)) if self.whole else Range(float(low), float(high))


@dataclasses.dataclass(frozen=True)
class Space:
    """A config with open places.

    Example:
        >>> space = Space.parse({"search": {"model": {"deep": {"sizes": {"layers": [1, 2], "size": [8]}}}}})
        >>> space.config({"model.deep.sizes:layers": 2, "model.deep.sizes:size": 8})
        {'model': {'deep': {'sizes': [8, 8]}}}
    """

    fixed: Mapping[str, Any]
    search: Mapping[str, Choice | Range]

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Space:
        for key in values:
            if key not in ("fixed", "search"):
                hint = did_you_mean(key, ("fixed", "search"))
                raise ConfigError(f"A space has the tables 'fixed' and 'search'; got '{key}'.", hint=hint)
        fixed, searched = (checked(dict[str, Any], values.get(key, {}), key) for key in ("fixed", "search"))
        search = dict(_parameters(searched, ""))
        if not search:
            raise ConfigError("A space must have something to search; its table 'search' is empty.")
        for name in search:
            put(copy.deepcopy(dict(fixed)), name, None)
        return cls(fixed, search)

    @classmethod
    def load(cls, path: Path) -> Space:
        return cls.parse(load_toml(path))

    def to_dict(self) -> dict[str, Any]:
        """As JSON, to see whether two spaces are one."""
        search = {name: dataclasses.asdict(parameter) for name, parameter in self.search.items()}
        values: dict[str, Any] = json.loads(json.dumps({"fixed": self.fixed, "search": search}))
        return values

    def config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The config in which the open places have these values."""
        result = copy.deepcopy(dict(self.fixed))
        for name, value in values.items():
            if name.endswith(LAYERS):
                key = name.removesuffix(LAYERS)
                put(result, key, [values[key + SIZE]] * value)
            elif value != LEFT_OUT and not name.endswith(SIZE):
                put(result, name, value)
        return result

    def holds(self, values: Mapping[str, Any]) -> bool:
        return all(self.search[name].holds(value) for name, value in values.items())

    def narrowed(self, best: Sequence[Mapping[str, Any]]) -> Space:
        """A smaller space around the best values, for a finer search."""
        search = {
            name: parameter.narrowed([values[name] for values in best]) for name, parameter in self.search.items()
        }
        return Space(self.fixed, search)


def default_space(model: str, *, like: str = "criteo") -> Space:
    """The space for a model of the paper's main table, or of those after it.

    Args:
        model: its name.
        like: "criteo" for the ranges that the paper prints, "movielens" for those of a set a hundred times smaller.
    """
    tables = tomllib.loads(resources.files(__package__).joinpath("spaces.toml").read_text(encoding="utf-8"))
    if like not in tables:
        raise ConfigError(f"Spaces are there for {listing(tables)}; got '{like}'.", hint=did_you_mean(like, tables))
    shared, models = tables[like]["shared"], tables[like]["models"]
    if model not in models:
        hint = did_you_mean(model, models) or "Write a space of your own as a TOML file."
        raise ConfigError(f"Spaces are there for {listing(models, most=20)}; got '{model}'.", hint=hint)
    search = {**shared["search"], **models[model]}
    has_deep = any(field.name == "deep" for field in dataclasses.fields(MODELS[model].settings))
    if not has_deep or model.startswith("cross-net"):
        search = {name: value for name, value in search.items() if not name.startswith("model.deep.")}
    put(shared["fixed"], "model.name", model)
    return Space.parse({"fixed": shared["fixed"], "search": search})


def _parameters(values: Mapping[str, Any], path: str) -> list[tuple[str, Choice | Range]]:
    found: list[tuple[str, Choice | Range]] = []
    for key, value in values.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, list) and value:
            found.append((name, Choice(tuple(value))))
        elif isinstance(value, Mapping) and {"low", "high"} <= value.keys() <= {"low", "high", "log"}:
            found.append((name, _range(name, value)))
        elif isinstance(value, Mapping) and value.keys() == {"layers", "size"} and all(value.values()):
            equal = checked(_Layers, value, name)
            found += [(name + LAYERS, Choice(tuple(equal["layers"]))), (name + SIZE, Choice(tuple(equal["size"])))]
        elif isinstance(value, Mapping) and not {"low", "high", "layers", "size"} & value.keys():
            found += _parameters(value, name)
        else:
            raise ConfigError(
                f"'{name}' must be a list of values, {{low, high}} with or without log, or {{layers, size}}; "
                f"got {value!r}."
            )
    return found


def _range(name: str, value: Mapping[str, Any]) -> Range:
    ends = checked(_Ends, value, name)
    low, high, log = ends["low"], ends["high"], ends.get("log", False)
    if not low < high or (log and low <= 0):
        raise ConfigError(f"'{name}' must have low below high, and above 0 where it is log; got {low} and {high}.")
    return Range(low, high, log)


def put(values: dict[str, Any], name: str, value: Any) -> None:
    """Set what a dotted name stands for in nested dictionaries."""
    *parents, last = name.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise ConfigError(f"'{parent}' must be a table, since '{name}' is searched; got {values!r:.80}.")
    values[last] = value
