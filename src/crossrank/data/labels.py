"""Reading labels, weights and groups, and finding the rows in which they cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from crossrank.data.derived import parse_dates
from crossrank.data.numbers import Doubles, Mask, Where, number_of_value, parse_column
from crossrank.data.on_demand import pl
from crossrank.data.packed_texts import distinct_words, texts_of_words
from crossrank.data.rows import Floats, Ids
from crossrank.data.table import Chunk
from crossrank.data.text import text_of_series, text_of_value
from crossrank.errors import DataError
from crossrank.schema import Date, Label, Numeric, Schema
from crossrank.schema.label import MAX_GRADE

WORDS = {"true": "1", "false": "0"}  # in any case


def labels_of_chunk(chunk: Chunk, label: Label) -> Floats:
    """The labels as float32: (N,), or (N, K) for K tasks, nan where one of them is not known.

    Raises:
        DataError: for a missing label, one that is no number, a binary one of neither class, or one that is no grade,
            with its place.
    """
    found = [_labels_of_column(chunk, name, label) for name in label.inputs]
    return np.column_stack(found) if label.kind == "tasks" else found[0]


def _labels_of_column(chunk: Chunk, name: str, label: Label) -> Floats:
    if name in chunk.words:  # most labels are equal: read each text once
        words = chunk.words[name]
        distinct = distinct_words(words)
        labels, bad = _parse_labels(texts_of_words(distinct), label)
        if not bad.any():
            return labels.take(np.searchsorted(distinct, words))
    column = chunk.column(name)
    labels, bad = _parse_labels(column, label)
    classes = " or ".join(label.classes or ("0", "1"))
    wanted = {"real": "a finite number in every row", "grade": f"a whole number from 0 to {MAX_GRADE}"}
    wanted["tasks"] = "0 or 1, or empty where it is not known"
    hint = "Map it first, or drop those rows."
    _refuse(bad, column, f"Label '{name}' must be {wanted.get(label.kind, classes)}", chunk.where, hint=hint)
    return labels


def weights_of_series(column: pl.Series, where: Where) -> Floats:
    """The weights as float32: finite and not negative."""
    weights, bad = _parse_weights(column)
    hint = "Mend or drop those rows, or give a schema in which it is no weight."
    _refuse(bad, column, f"Weight '{column.name}' must be a finite number, 0 or more", where, hint=hint)
    return weights


def unusable_rows(frame: pl.DataFrame, schema: Schema) -> Iterator[tuple[str, Mask]]:
    """Reasons to leave rows out, with the rows: labels, weights, numbers and dates that would be refused."""
    for reason, name, refused in refusals(schema):
        yield reason, refused(frame[name])


def refusals(schema: Schema) -> Iterator[tuple[str, str, Callable[[pl.Series], Mask]]]:
    """What may be wrong with a row: the reason, a column of the table, and the function to its cells that are refused.

    The function raises DataError for a column none of whose cells can be read.
    """
    for name in schema.label.inputs:
        yield f"bad label '{name}'", name, lambda cells: _parse_labels(cells, schema.label)[1]
    if schema.weight:
        yield f"bad weight '{schema.weight}'", schema.weight, lambda cells: _parse_weights(cells)[1]
    for column in schema.in_table:
        if isinstance(column, Numeric):
            yield f"bad number in '{column.name}'", column.input, partial(_bad_numbers, column)
        elif isinstance(column, Date):
            yield f"bad date in '{column.name}'", column.input, partial(_bad_dates, column)


def _bad_numbers(column: Numeric, cells: pl.Series) -> Mask:
    return parse_column(cells, column.markers, column.decimal)[1]


def _bad_dates(column: Date, cells: pl.Series) -> Mask:
    return parse_dates(cells, column)[2]


def _parse_labels(column: pl.Series, label: Label) -> tuple[Floats, Mask]:
    if label.classes:
        return _parse_classes(column, label.classes)
    labels, bad = parse_column(column)
    if label.kind == "real":
        return _single(labels), bad | np.isnan(labels)
    if label.kind == "grade":
        return _single(labels), bad | ~((labels >= 0) & (labels <= MAX_GRADE) & (labels == np.round(labels)))
    if column.dtype == pl.String and (bad | ~np.isin(labels, (0, 1))).any():
        labels, bad = parse_column(column.str.strip_chars().str.to_lowercase().replace(WORDS))
    unknown = np.isnan(labels) & (label.kind == "tasks")
    return _single(labels), bad | ~(unknown | np.isin(labels, (0, 1)))


def _parse_classes(column: pl.Series, classes: Sequence[str]) -> tuple[Floats, Mask]:
    """The position of each row's class; compared as numbers where all classes are, else whatever their case."""
    try:
        numbers, _ = parse_column(column)
        match = [numbers == number_of_value(text) for text in classes]
    except ValueError:
        texts, wanted = text_of_series(column).str.strip_chars(), [text.strip() for text in classes]
        if len({text.lower() for text in wanted}) == len(wanted):
            texts, wanted = texts.str.to_lowercase(), [text.lower() for text in wanted]
        match = [(texts == text).fill_null(False).to_numpy() for text in wanted]
    return np.argmax(match, axis=0).astype(np.float32), ~np.any(match, axis=0)


def _parse_weights(column: pl.Series) -> tuple[Floats, Mask]:
    weights, bad = parse_column(column)
    return _single(weights), bad | ~(weights >= 0)


def _single(numbers: Doubles) -> Floats:
    with np.errstate(over="ignore"):  # what is too large is refused by name, not by a warning
        return numbers.astype(np.float32)


def _refuse(bad: Mask, column: pl.Series, contract: str, where: Where, *, hint: str) -> None:
    if bad.any():
        row = int(bad.argmax())
        shown = text_of_value(column[row]) or "nothing"
        raise DataError(f"{contract}; got {shown[:60]} in {where(row)}.", hint=hint)


class GroupNumbers:
    """Numbers groups in the order of their first appearance; a missing group is a group of its own."""

    def __init__(self) -> None:
        self._type = pl.Categorical(pl.Categories.random())
        self._alive = pl.Series([""], dtype=self._type)  # polars forgets a dictionary that nothing uses any more
        self._numbers = np.zeros(0, np.int64)
        self._count = 0

    def add(self, column: pl.Series) -> Ids:
        codes = text_of_series(column).cast(self._type).to_physical().fill_null(0).to_numpy()
        size = int(codes.max(initial=0)) + 1
        if size > len(self._numbers):
            self._numbers = np.append(self._numbers, np.full(size - len(self._numbers), -1))
        unknown = codes[self._numbers[codes] < 0]
        new = unknown[np.sort(np.unique(unknown, return_index=True)[1])]  # each once, as they come
        self._numbers[new] = np.arange(self._count, self._count + len(new))
        self._count += len(new)
        numbers: Ids = self._numbers[codes].astype(np.uint32)
        return numbers

    def texts(self) -> pl.Series:
        """The groups in the order of their numbers; what is missing is a text of no letters."""
        codes = np.argsort(self._numbers)[len(self._numbers) - self._count :]
        return pl.Series(codes.astype(np.uint32)).cat.to(self._type).cast(pl.String)
