"""Rows in the shape of Criteo's set, with a known truth.

13 counts with heavy tails, 26 categories with power-law vocabularies of 2.3 million values in all, and about as many
missing values as the real set has. The columns are drawn independently, and the label with

    P(label = 1 | row) = sigmoid(intercept + Σ m(value) + Σ strength · Π u(value))

with a main effect m for each column, and the second sum over the planted crosses of two to four columns. So the logit
is a polynomial of the fourth order in the numbers u that the values of a column stand for; m and u are centred, u has
the variance 1, and no cross can be imitated by fewer columns (:mod:`crossrank.data.generators.planted`). A missing
value adds nothing.

The truth is fixed, and the rows are a pure function of the seed and their position: chunk k is drawn by Philox, a
counter-based generator, with the key (seed, k).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache, cached_property, reduce
from typing import Literal

import numpy as np
import numpy.typing as npt

from crossrank.data.generators.planted import Floats, factors, hashed, sigmoid
from crossrank.data.sources import criteo
from crossrank.data.vocabulary import FIRST_ID, MISSING_ID
from crossrank.schema import Numeric

# Close to what is known of the real set; the largest vocabularies are cut to values that occur more than a few times.
_SIZES = (
    *(1460, 583, 600_000, 160_000, 305, 24, 12_517, 633, 3, 45_000, 5683, 510_000, 3194),
    *(27, 14_992, 350_000, 10, 5652, 2173, 4, 440_000, 18, 15, 90_000, 105, 60_000),
)
SIZES = dict(zip(criteo.CATEGORICAL, _SIZES, strict=True))
POWER = 1.05  # the k-th most frequent value of a category has the weight k^-1.05
MISSING = {"I1": 0.454, "I3": 0.215, "I4": 0.217, "I5": 0.026, "I6": 0.224, "I7": 0.043, "I9": 0.043, "I10": 0.454}
MISSING |= {"I11": 0.043, "I12": 0.765, "I13": 0.217, "C3": 0.034, "C4": 0.034, "C6": 0.121, "C12": 0.034, "C16": 0.034}
MISSING |= {"C19": 0.44, "C20": 0.44, "C21": 0.034, "C22": 0.763, "C24": 0.034, "C25": 0.44, "C26": 0.44}
# A count is lowest + ⌊median · (p / (1 - p))^spread⌋ with p uniform: a log-logistic distribution, with a Pareto tail.
COUNTS = {
    "I1": (0, 1.5, 0.7),
    "I2": (-2, 5.0, 1.0),
    "I3": (0, 6.5, 0.75),
    "I4": (0, 4.5, 0.55),
    "I5": (0, 2800.0, 0.7),
    "I6": (0, 32.0, 0.75),
    "I7": (0, 3.5, 0.8),
    "I8": (0, 7.5, 0.55),
    "I9": (0, 38.0, 0.6),
    "I10": (0, 1.0, 0.2),
    "I11": (0, 1.5, 0.5),
    "I12": (0, 0.6, 0.7),
    "I13": (0, 4.5, 0.55),
}

# Standard deviations in the logit; vocabularies that few rows can teach have smaller effects.
INTERCEPT = -1.5
MAIN, MAIN_OF_HUGE, HUGE = 0.15, 0.05, 100_000
# The crossed columns stand in a ring, and so many places apart are crossed. Their values are few enough for a million
# rows to show most of them often, so that it is the crosses which are hard to learn and not the values.
RING = (
    *("C6", "C1", "C14", "C11", "C17", "C2", "I5", "C23"),
    *("C5", "C9", "C18", "C25", "C8", "I8", "C13", "C19"),
)
PLACES = {(0, 1): 0.2, (0, 3): 0.2, (0, 7): 0.2, (0, 1, 3): 0.3, (0, 1, 3, 7): 0.25}
CROSSES: dict[tuple[str, ...], float] = {
    tuple(RING[(first + place) % len(RING)] for place in places): strength
    for places, strength in PLACES.items()
    for first in range(len(RING))
}

# The log loss of the best prediction from the orders up to this one alone.
BEST_BY_ORDER = {1: 0.564, 2: 0.501, 3: 0.446, 4: 0.405}

CHUNK_ROWS = 16_384  # part of what a seed means, like everything above
SLICES = 2**16

Bits = npt.NDArray[np.uint32]
Codes = npt.NDArray[np.intp]
Texts = npt.NDArray[np.uint64]  # eight letters each, zero bytes after a shorter text


class Category:
    """A categorical column; its codes are the ids of the encoded dataset.

    The unit interval is cut into 2^16 slices, first those of the missing value. A slice belongs to one frequent value
    or, evenly, to several rare ones: a power law that 32 random bits and two table lookups draw from.
    """

    def __init__(self, name: str) -> None:
        self.name, self._size = name, SIZES[name]
        reached = np.cumsum(np.arange(1.0, self._size + 1) ** -POWER)
        missing = round(MISSING.get(name, 0.0) * SLICES)
        edges = np.searchsorted(reached / reached[-1], np.linspace(0, 1, SLICES - missing + 1), side="right")
        self._first = np.concatenate([np.full(missing, MISSING_ID), FIRST_ID + edges[:-1]]).astype(np.uint32)
        self._span = np.concatenate([np.ones(missing), np.maximum(np.diff(edges), 1)]).astype(np.uint32)

    def draw(self, bits: Bits) -> Codes:
        place = (bits >> 16).astype(np.intp)
        return (self._first[place] + ((bits & 0xFFFF) * self._span[place] >> 16)).astype(np.intp)

    @cached_property
    def shares(self) -> Floats:
        """How often each code is drawn."""
        span = self._span.astype(np.intp)
        place = np.arange(span.sum()) - np.repeat(np.cumsum(span) - span, span)
        ids = np.repeat(self._first, span) + place
        return np.bincount(ids, np.repeat(1 / span, span), FIRST_ID + self._size) / SLICES

    @cached_property
    def texts(self) -> Texts:
        """Eight hexadecimal digits for each value, all different; nothing for the special ids."""
        key = np.arange(self._size, dtype=np.uint32) + hashed(self.name, 1).astype(np.uint32)
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):  # MurmurHash3's finaliser, a bijection
            key = (key ^ (key >> np.uint32(shift))) * np.uint32(factor)
        digits = key[:, None] >> np.arange(28, -1, -4, dtype=np.uint32) & np.uint32(15)  # (V, 8)
        letters = np.frombuffer(b"0123456789abcdef", np.uint8)[digits]
        return np.concatenate([np.zeros(FIRST_ID, np.uint64), letters.view(np.uint64)[:, 0]])

    @property
    def strength(self) -> float:
        return MAIN_OF_HUGE if self._size >= HUGE else MAIN

    def numbers(self, use: Literal["main", "cross"]) -> Floats:
        """What each code stands for in an effect, with mean 0 and variance 1. Shape: (codes,)."""
        values = factors(f"{self.name} {use}", self.shares[FIRST_ID:], rank=1)[:, 0]
        return np.concatenate([np.zeros(FIRST_ID), values])


class Count:
    """A numeric column; its codes are 2^16 equally likely quantiles, first those of the missing value."""

    strength = MAIN

    def __init__(self, column: Numeric) -> None:
        lowest, median, spread = COUNTS[column.name]
        missing = round(MISSING.get(column.name, 0.0) * SLICES)
        p = (np.arange(SLICES - missing) + 0.5) / (SLICES - missing)
        self.name, self._values = column.name, lowest + np.floor(median * (p / (1 - p)) ** spread)
        self.logged = np.log(np.append(np.full(missing, np.nan), self._values) + (column.log_shift or 0.0))
        self.mean, self.deviation = float(np.nanmean(self.logged)), float(np.nanstd(self.logged))

    def draw(self, bits: Bits) -> Codes:
        return (bits >> 16).astype(np.intp)

    @cached_property
    def texts(self) -> Texts:
        """The number of each code in decimal digits, and nothing for the missing value."""
        letters = self._values.astype(np.int64).astype("S8").view(np.uint64)
        return np.append(np.zeros(SLICES - len(letters), np.uint64), letters)

    def numbers(self, use: Literal["main", "cross"]) -> Floats:
        """The standardized logarithm. Shape: (codes,)."""
        return np.nan_to_num((self.logged - self.mean) / self.deviation)


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Some rows: the codes of each column (N,), and P(label = 1 | row) and the label (N,)."""

    codes: dict[str, Codes]
    probability: Floats
    labels: npt.NDArray[np.bool_]


class Truth:
    """All columns, and the logit of their codes."""

    def __init__(self) -> None:
        self.schema = criteo.schema(min_count=1)
        self.counts = [Count(column) for column in self.schema.numeric]
        self.categories = [Category(column.name) for column in self.schema.categorical]
        both: list[Count | Category] = [*self.counts, *self.categories]
        self.columns = {column.name: column for column in both}
        self._mains = {column.name: _table(column.strength * column.numbers("main")) for column in both}
        self._crossed = {name: _table(self.columns[name].numbers("cross")) for name in RING}

    def logit(self, codes: Mapping[str, Codes]) -> Floats:
        logit = np.full(len(codes["C1"]), INTERCEPT)
        for name, table in self._mains.items():
            logit += table.take(codes[name])
        numbers = {name: table.take(codes[name]) for name, table in self._crossed.items()}
        for cross, strength in CROSSES.items():
            logit += strength * reduce(np.multiply, (numbers[name] for name in cross))
        return logit

    def cross(self, cross: tuple[str, ...], codes: Mapping[str, Codes]) -> Floats:
        """What a planted cross adds to the logits. Shape: (N,)."""
        product = reduce(np.multiply, (self._crossed[name].take(codes[name]) for name in cross))
        return CROSSES[cross] * product.astype(np.float64)

    def chunk(self, seed: int, number: int, rows: int) -> Chunk:
        """The first rows of a chunk, drawn with all others so that fewer rows are the beginning of more."""
        random = np.random.Philox(key=np.array([seed % 2**64, number], np.uint64))
        words = random.random_raw((len(self.columns) + 1) * CHUNK_ROWS // 2).view(np.uint32).reshape(-1, CHUNK_ROWS)
        codes = {name: column.draw(words[i, :rows]) for i, (name, column) in enumerate(self.columns.items(), 1)}
        probability = sigmoid(self.logit(codes))
        return Chunk(codes, probability, words[0, :rows] * 2.0**-32 < probability)


def _table(values: Floats) -> npt.NDArray[np.float32]:
    """Half as wide, so that more of it stays in the processor's cache."""
    return np.ascontiguousarray(values, np.float32)


@cache
def truth() -> Truth:
    """The one truth; its tables take a second to make."""
    return Truth()
