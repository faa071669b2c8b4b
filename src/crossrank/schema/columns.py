"""What each column of a table means.

A schema is a list of feature columns, each an object of the class that says what it means, and the names of the label,
weight and group columns. It is written as JSON that a person can edit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar, TypeAlias

from crossrank.config import setting
from crossrank.errors import SchemaError, listing
from crossrank.schema.cells import DecimalMark, TableColumn
from crossrank.schema.cross_column import Cross
from crossrank.schema.dates import NUMBERS, Date

NUMBER_ENCODINGS = ("scalar", "values", "pieces", "missing")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Categorical(TableColumn):
    """A column with one value from a set: a user, a country, an hour. Values are compared as text."""

    kind: ClassVar[str] = "categorical"
    min_count: int = setting(1, "values seen less often in training share the id for unseen values")
    max_size: int | None = setting(None, "keep only this many of the most frequent values")
    hash_size: int | None = setting(None, "hash into this many ids instead of keeping a vocabulary")

    def __post_init__(self) -> None:
        _check_vocabulary(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Multivalent(TableColumn):
    """A column with any number of values from a set: tags, genres. Text is cut at the separator; lists are kept."""

    kind: ClassVar[str] = "multivalent"
    separator: str = setting("|", "what stands between two values of a text cell")
    min_count: int = setting(1, "values seen less often in training share the id for unseen values")
    max_size: int | None = setting(None, "keep only this many of the most frequent values")
    hash_size: int | None = setting(None, "hash into this many ids instead of keeping a vocabulary")

    def __post_init__(self) -> None:
        _check_vocabulary(self)
        if not self.separator:
            raise SchemaError(f"The separator of column '{self.name}' must not be empty.", hint='Usual is "|".')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numeric(TableColumn):
    """A column with a number, as one or several slots of x0, each after ``log(max(x + log_shift, 1))``.

    ``scalar``: standardized; a missing number becomes the training mean. ``values``: the id of its value, or of a bin
    of values. ``pieces``: how far it has come in each of up to 16 ranges. ``missing``: whether there is no number;
    pieces tell it too, where it happens in training rows. Several are joined, as in ``scalar+values``. Left ``auto``,
    the training rows decide (:mod:`crossrank.data.number_codes`).

    The logarithm is taken where ``log_shift`` is given. Numbers below ``1 - log_shift`` count as ``1 - log_shift``, so
    the logarithm is never negative or undefined.
    """

    kind: ClassVar[str] = "numeric"
    log_shift: float | None = setting(None, "take log(x + this); leave out for no logarithm")
    standardize: bool = setting(True, "subtract the training mean and divide by the training deviation")
    decimal: DecimalMark | None = setting(
        None, "the decimal mark of numbers written for people: $1,234.50 or 1.234,5 % or 1 234 €; a percent is not cut"
    )
    encoding: str = setting("auto", "'scalar', 'values', 'pieces', several joined by '+', or 'auto'")

    def __post_init__(self) -> None:
        words = self.encoding.split("+")
        known = {*words} <= {*NUMBER_ENCODINGS} and len({*words}) == len(words) and words != ["missing"]
        if words != ["auto"] and not known:
            raise SchemaError(
                f"encoding of column '{self.name}' must be 'auto', or one or several of {listing(NUMBER_ENCODINGS)}; "
                f"got '{self.encoding}'.",
                hint="Join several by '+', as in 'scalar+values+pieces'; 'missing' goes with others.",
            )
        if self.log_shift is not None and not math.isfinite(self.log_shift):
            raise SchemaError(f"log_shift of column '{self.name}' must be a finite number; got {self.log_shift}.")
        for text in self.missing:
            if _is_finite(text):
                raise SchemaError(
                    f"Texts that count as missing must not be numbers; column '{self.name}' has '{text}'.",
                    hint="Empty such cells in the table instead.",
                )

    @property
    def encodings(self) -> tuple[str, ...]:
        """What it is encoded as, in the order of the slots; the scalar alone where nothing is decided yet."""
        words = self.encoding.split("+") if self.encoding != "auto" else ["scalar"]
        return tuple(word for word in NUMBER_ENCODINGS if word in words)


Encoded: TypeAlias = Categorical | Multivalent | Numeric
TableFeature: TypeAlias = Encoded | Date
Column: TypeAlias = TableFeature | Cross
COLUMN_KINDS: dict[str, type[Column]] = {cls.kind: cls for cls in (Categorical, Multivalent, Numeric, Date, Cross)}


def as_encoded(column: TableFeature) -> Iterator[Encoded]:
    """What the encoder makes of a column: one feature, or one for each part of a date."""
    if not isinstance(column, Date):
        yield column
        return
    for part in column.parts:
        if part in NUMBERS:
            encoding = column.encodings.get(part, "auto")
            yield Numeric(name=column.feature(part), source=column.input, encoding=encoding)
        else:
            yield Categorical(name=column.feature(part), source=column.input)


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _check_vocabulary(column: Categorical | Multivalent) -> None:
    for key in ("min_count", "max_size", "hash_size"):
        value = getattr(column, key)
        if value is not None and value < 1:
            raise SchemaError(f"{key} of column '{column.name}' must be at least 1; got {value}.")
    if column.hash_size is not None and (column.min_count > 1 or column.max_size is not None):
        raise SchemaError(
            f"Column '{column.name}' is hashed, so min_count and max_size do not apply.", hint="Leave out one of them."
        )
