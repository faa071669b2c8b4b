"""A click log made on the spot, whose truth is known: what to try the library on, and what to test it against.

Each row is an advertisement (``item``) shown to a ``user`` on a page. The columns are drawn independently of each
other, and the click with

    P(click | row) = sigmoid(intercept + Σ main effects + Σ planted crosses)

where the crosses are pure interactions (:mod:`crossrank.data.generators.planted`): a model without crosses learns
nothing of them. A missing value adds nothing, alone or in a cross. The truth is fixed; the seed picks the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from crossrank.data.generators.planted import Floats, entropy, factors, sigmoid
from crossrank.data.on_demand import pl
from crossrank.errors import ConfigError
from crossrank.schema import Categorical, Label, Multivalent, Numeric, Schema

INTERCEPT = -2.2
RANK = 3
# The standard deviation of each effect in the logit: of a row's mean tag somewhat less, and of a number, the slope.
EFFECTS: dict[tuple[str, ...], float] = {
    ("user",): 0.3,
    ("item",): 0.3,
    ("country",): 0.3,
    ("language",): 0.3,
    ("device",): 0.3,
    ("hour",): 0.3,
    ("category",): 0.3,
    ("tags",): 0.3,
    ("price",): -0.4,
    ("age_days",): -0.3,
    ("country", "language"): 0.8,
    ("device", "hour"): 0.8,
    ("country", "category"): 0.8,
    ("category", "price"): 0.8,
    ("language", "device", "category"): 0.6,
    ("device", "category", "tags"): 0.6,
}
PLANTED: tuple[tuple[str, ...], ...] = tuple(effect for effect in EFFECTS if len(effect) > 1)

VALUES: dict[str, list[str] | list[int]] = {
    "user": [f"u{number:04}" for number in range(3000)],
    "country": ["US", "IN", "BR", "DE", "JP", "GB", "FR", "MX", "IT", "KR", "ES", "NL"],
    "language": ["en", "es", "pt", "de", "ja", "fr", "it", "ko"],
    "device": ["phone", "desktop", "tablet", "tv"],
    "hour": list(range(24)),
    "item": [f"ad{number:03}" for number in range(800)],
    "category": [
        *("news", "sports", "music", "games", "travel", "food", "fashion", "beauty", "autos", "garden"),
        *("books", "film", "health", "finance", "pets"),
    ],
    "tags": [f"t{number:02}" for number in range(40)],
}
POWER = {"user": 0.9, "item": 0.9, "country": 0.5, "language": 0.5, "device": 0.4}  # value k has weight (k + 1)^-power
NUMBERS = {"price": (3.0, 0.8), "age_days": (2.8, 0.9)}  # log(1 + x) has this mean and this deviation
MISSING = {"country": 0.02, "language": 0.04, "device": 0.01, "tags": 0.05, "price": 0.05, "age_days": 0.1}
MOST_TAGS = 3

Drawn = dict[str, npt.NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class DemoLog:
    """Rows and their truth: ``probability`` is P(click | row) of each row of ``frame``."""

    frame: pl.DataFrame
    probability: Floats

    @property
    def best_logloss(self) -> float:
        """The expected log loss of the truth on these rows: no model can be expected to do better."""
        return float(entropy(self.probability).mean())


def click_log(rows: int = 100_000, *, seed: int = 0) -> DemoLog:
    """Draw a click log.

    Args:
        rows: how many rows.
        seed: which rows; the truth is the same for all seeds.

    Raises:
        ConfigError: for less than one row.

    Example:
        >>> log = click_log(1000)
        >>> log.frame.columns[:4]
        ['user', 'country', 'language', 'device']
    """
    if rows < 1:
        raise ConfigError(f"A click log needs at least one row; got rows={rows}.")
    random = np.random.default_rng(seed)
    drawn = _draw(rows, random)
    probability = sigmoid(INTERCEPT + np.sum(list(_parts(drawn).values()), axis=0))
    return DemoLog(_frame(drawn, clicks=random.random(rows) < probability), probability)


def schema() -> Schema:
    """What the columns of the log mean. Rare users share an id, so that unknown users find a trained one."""
    singles = [Categorical(name=name, min_count=10 if name == "user" else 1) for name in VALUES if name != "tags"]
    numbers = [Numeric(name=name, log_shift=1.0, encoding="scalar") for name in NUMBERS]
    return Schema([*singles, Multivalent(name="tags"), *numbers], Label(name="click"))


def _weights(name: str) -> Floats:
    return np.arange(1.0, len(VALUES[name]) + 1) ** -POWER.get(name, 0.0)


def _draw(rows: int, random: np.random.Generator) -> Drawn:
    """Ids (N,) of single values and (N, 3) of tags, where the last id is the missing value; numbers with NaN."""
    drawn: Drawn = {}
    for name, values in VALUES.items():
        if name == "tags":
            tags = random.permuted(np.tile(np.arange(len(values)), (rows, 1)), axis=1)[:, :MOST_TAGS]
            count = random.integers(1, MOST_TAGS + 1, rows)
            drawn[name] = np.where(np.arange(MOST_TAGS) < count[:, None], tags, len(values))
        else:
            weights = _weights(name)
            drawn[name] = random.choice(len(values), size=rows, p=weights / weights.sum())
    for name, (mean, deviation) in NUMBERS.items():
        drawn[name] = np.expm1(np.maximum(random.normal(mean, deviation, rows), 0)).round(2)
    for name, share in MISSING.items():
        drawn[name][random.random(rows) < share] = len(VALUES[name]) if name in VALUES else np.nan
    return drawn


def _frame(drawn: Drawn, *, clicks: npt.NDArray[np.bool_]) -> pl.DataFrame:
    columns: dict[str, pl.Series] = {}
    for name, values in VALUES.items():
        texts = pl.Series([*values, None])
        if name == "tags":
            pieces = [texts.gather(ids).alias(str(place)) for place, ids in enumerate(drawn[name].T)]
            joined = pl.concat_str(pieces, separator="|", ignore_nulls=True)
            columns[name] = pl.select(joined).to_series().replace("", None)
        else:
            columns[name] = texts.gather(drawn[name])
    columns |= {name: pl.Series(drawn[name], nan_to_null=True) for name in NUMBERS}
    return pl.DataFrame({**columns, "click": clicks.astype(np.int8)})


def _parts(drawn: Drawn) -> Mapping[tuple[str, ...], Floats]:
    """What each effect adds to the logits. Shape: (N,) each."""
    parts = {}
    for effect, strength in EFFECTS.items():
        rank = RANK if len(effect) > 1 else 1
        product = np.ones((1, rank))
        for name in effect:
            product = product * _vectors(name, effect, drawn[name], rank)  # (N, R)
        parts[effect] = strength / np.sqrt(rank) * product.sum(axis=1)
    return parts


def _vectors(name: str, effect: tuple[str, ...], drawn: npt.NDArray[Any], rank: int) -> Floats:
    """What a column brings into an effect: factors, their mean over the tags, or a number. Shape: (N, R) or (N, 1)."""
    if name in NUMBERS:
        mean, deviation = NUMBERS[name]
        scaled: Floats = np.nan_to_num((np.log1p(drawn) - mean) / deviation)
        return scaled[:, None]
    table = factors("/".join((*effect, name)), _weights(name), rank=rank)
    vectors: Floats = np.vstack([table, np.zeros(rank)])[drawn]  # the last id is the missing value, and adds nothing
    if name == "tags":
        count = np.maximum((drawn < len(VALUES[name])).sum(axis=1), 1)
        vectors = vectors.sum(axis=1) / count[:, None]  # (N, 3, R) -> (N, R)
    return vectors
