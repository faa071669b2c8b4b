"""Which rows train, validate and test.

| method | a row's split is a function of |
| --- | --- |
| random | the seed and the row's position |
| group | the seed and the text of the row's group, so that a group stays together |
| time | the row's time: the earliest rows train, the latest test, equal times stay together |
| time-then-random | the row's time for training; of the later rows, the seed and the position |
| column | what a column says: train, valid or test, in the usual spellings |
| files | the file it came from: see :func:`crossrank.data.open_splits` |

``auto`` is the first of these that applies: ``files``, ``column`` where ``split.column`` is given, ``time`` where the
schema names a time column, ``column`` where a column called split holds such names and nothing else, ``group`` where
the label is a grade and its group is no feature, ``random``. Where a column or the files leave out the valid rows, they
are drawn from the training rows; of such grades, whole groups.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from crossrank.config import setting
from crossrank.data.on_demand import pl
from crossrank.data.picking import check_columns
from crossrank.data.table import Chunk, Table
from crossrank.data.text import splitmix64, stable_hashes, text_of_series
from crossrank.data.time_split import ByTime
from crossrank.errors import ConfigError, DataError, SchemaError, listing
from crossrank.schema import Schema
from crossrank.schema.split_names import SPLIT_NAMES, find_split, split_of

SPLITS = ("train", "valid", "test")
Assign = Callable[["Chunk"], NDArray[np.uint8]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSettings:
    """How rows are divided.

    >>> SplitSettings(fractions=(0.9, 0.2))
    Traceback (most recent call last):
    crossrank.errors.ConfigError: The fractions of a split must add up to 1; got 0.9, 0.2. Usual is 0.8, 0.1, 0.1.
    """

    method: Literal["auto", "random", "time", "group", "time-then-random", "column", "files"] = setting(
        "auto",
        "by chance, by a time column, whole groups by chance, the latest rows by chance, or as a column or the files "
        "say; auto: what the table and its schema suggest",
    )
    column: str | None = setting(
        None,
        "the column that names each row's split, or the time or group column; for time, left out: the rows are in "
        "order of time",
    )
    fractions: tuple[float, ...] = setting((0.8, 0.1, 0.1), "shares of train, valid and test")
    seed: int = setting(0, "another seed, another random division")

    def __post_init__(self) -> None:
        given = ", ".join(f"{fraction:g}" for fraction in self.fractions)
        if not 1 <= len(self.fractions) <= len(SPLITS):
            raise ConfigError(f"A split has 1 to 3 fractions: train, valid, test; got {len(self.fractions)}.")
        if min(self.fractions) < 0 or abs(sum(self.fractions) - 1) > 1e-6:
            raise ConfigError(
                f"The fractions of a split must add up to 1; got {given}.", hint="Usual is 0.8, 0.1, 0.1."
            )
        if self.fractions[0] == 0:
            raise ConfigError(f"The first fraction of a split, for training, must be above 0; got {given}.")
        if self.method in ("group", "column") and self.column is None:
            raise ConfigError(
                f"A split by {self.method} needs a column; got none.", hint="Set split.column to its name."
            )

    @property
    def names_column(self) -> str | None:
        """The column that names each row's split, if one is given."""
        return self.column if self.method in ("auto", "column") else None

    @property
    def may_lack_test(self) -> bool:
        """Whether a dataset without test rows is as it was asked for."""
        return self.method in ("column", "files") or not sum(self.fractions[2:])

    def decided(self, table: Table, schema: Schema) -> tuple[SplitSettings, str]:
        """The same with the method that ``auto`` stands for, and in a line why, where nobody asked for it.

        Raises:
            ConfigError: for a method that does not go with tables whose files are the splits.
            SchemaError: for a feature that names the split.
        """
        if table.part_splits:
            if self.method not in ("auto", "files") or self.column is not None:
                given = f"split.method={self.method}" if self.column is None else f"split.column={self.column}"
                hint = "Leave it out, or give one table."
                raise ConfigError(f"Rows in files for each split are divided by their files; got {given}.", hint=hint)
            return dataclasses.replace(self, method="files"), ""
        if self.names_column in [*schema.required]:
            raise SchemaError(
                f"The column that names the split must have no other meaning; '{self.names_column}' is in the schema.",
                hint="Take it out of the schema, or set split.method=group or time to divide by it.",
            )
        if self.method != "auto":
            return self, ""
        if self.column is not None:
            return dataclasses.replace(self, method="column"), ""
        if schema.time is not None:
            why = f"the split is by '{schema.time}', the time column: the model is judged on rows later than it learned"
            return dataclasses.replace(self, method="time", column=schema.time), f"{why} (else: split.method=random)"
        others = [name for name in table.columns if name.lower() == "split" and name not in schema.required]
        found = find_split(table.head()[others].to_dict()) if others else None
        if found is not None:
            why = f"the split is by '{found}', which says train, valid or test (else: split.method=random)"
            return dataclasses.replace(self, method="column", column=found), why
        if (group := schema.ranked_group) is not None:
            why = f"the split is by '{group}', so that whole groups are ranked (else: split.method=random)"
            return dataclasses.replace(self, method="group", column=group), why
        return dataclasses.replace(self, method="random"), ""

    def assigner(self, table: Table, *, together: str | None = None) -> Assign:
        """The function from a chunk of the table to its rows' splits, as positions in ``SPLITS``.

        For ``time`` and ``column`` this reads that column once. Where valid rows are drawn from the training rows,
        those with one value of the column ``together`` stay together.
        """
        column, borders = self.column, _borders(self.fractions)
        if column is not None:
            check_columns([column], table.columns, table.name)
        if self.method == "files":
            return self._with_valid(lambda chunk: _of_file(table, chunk), set(table.part_splits), together)
        if column is not None and self.names_column is not None:
            return self._with_valid(lambda chunk: _named(chunk.frame[column]), _check_names(table, column), together)
        if self.method in ("auto", "random"):
            return lambda chunk: _draw(_positions(chunk).astype(np.uint64), self.seed, borders)
        if self.method == "group" and column is not None:
            return lambda chunk: _draw(_hashes(chunk, column), self.seed, borders)
        cuts = borders if self.method == "time" else borders[:1]
        divide = (lambda splits, _: splits) if self.method == "time" else self._divide_later
        if column is not None:
            return ByTime(table, column, cuts, divide)
        firsts = np.round(cuts * table.num_rows())
        return lambda chunk: divide(np.searchsorted(firsts, _positions(chunk), side="right").astype(np.uint8), chunk)

    def _with_valid(self, assign: Assign, present: set[int], together: str | None) -> Assign:
        """The same, with valid rows drawn from the training rows where there are none."""
        if 1 in present or not sum(self.fractions[1:2]):
            return assign

        def draw(chunk: Chunk) -> NDArray[np.uint8]:
            splits = assign(chunk)
            keys = _positions(chunk).astype(np.uint64) if together is None else _hashes(chunk, together)
            drawn = _draw(keys, self.seed, _borders(self.fractions[:2]))
            return np.where(splits == 0, drawn, splits)

        return draw

    def _divide_later(self, splits: NDArray[np.uint8], chunk: Chunk) -> NDArray[np.uint8]:
        """Rows after training, drawn in the ratio of the other fractions."""
        later = np.flatnonzero(splits)
        keys = _positions(chunk)[later].astype(np.uint64)
        splits[later] = 1 + _draw(keys, self.seed, _borders(self.fractions[1:]))
        return splits


def _borders(fractions: Sequence[float]) -> NDArray[np.float64]:
    """Where one share of the unit interval ends and the next begins; exactly 1 where only empty shares follow."""
    reached = np.cumsum(fractions)
    return reached[:-1] / (reached[-1:].sum() or 1.0)


def _draw(keys: NDArray[np.uint64], seed: int, borders: NDArray[np.float64]) -> NDArray[np.uint8]:
    salt = splitmix64(np.array([seed % 2**64], np.uint64))
    uniform: NDArray[np.float64] = (splitmix64(keys ^ salt) >> 11) * 2.0**-53
    return np.searchsorted(borders, uniform, side="right").astype(np.uint8)


def _positions(chunk: Chunk) -> NDArray[np.int64]:
    return np.arange(chunk.first_row, chunk.first_row + len(chunk.frame))


def _hashes(chunk: Chunk, column: str) -> NDArray[np.uint64]:
    return stable_hashes(text_of_series(chunk.frame[column]))


def _of_file(table: Table, chunk: Chunk) -> NDArray[np.uint8]:
    return np.full(len(chunk.frame), table.part_splits[chunk.part], np.uint8)


def _named(names: pl.Series) -> NDArray[np.uint8]:
    texts = text_of_series(names)
    known = {text: split_of(text) for text in texts.unique().to_list()}
    return texts.replace_strict(known, return_dtype=pl.UInt8).to_numpy()


def _check_names(table: Table, column: str) -> set[int]:
    """The splits that a column names, after a look at every row."""
    counts: Counter[str | None] = Counter()
    for chunk in table.chunks([column]):
        counts.update(dict(text_of_series(chunk.frame[column]).value_counts().iter_rows()))
    unknown = {text: count for text, count in counts.items() if split_of(text) is None}
    if unknown:
        got = listing(sorted(text or "nothing" for text in unknown))
        raise DataError(
            f"Column '{column}' must say {listing(SPLIT_NAMES, most=20)}; got {got} in {sum(unknown.values()):,} rows.",
            hint=f"Mend these rows, or set split.method: time or group to divide by '{column}', random not to.",
        )
    splits = {split for text in counts if (split := split_of(text)) is not None}
    if 0 not in splits:
        raise DataError(
            f"Column '{column}' must say train in some rows; got {listing(sorted(str(text) for text in counts))}."
        )
    return splits
