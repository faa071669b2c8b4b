"""The raw values behind encoded rows, as a person reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from crossrank.data import MISSING_ID, UNSEEN_ID, Encoder
from crossrank.data.rows import EncodedRows
from crossrank.evaluation.grouped import Floats

MISSING = "<missing>"
DIGITS = 5  # below a column's usual size; float32 keeps six or seven


def namer(encoder: Encoder, column: str) -> Callable[[Any], str]:
    """What tells the text of an id of an embedded feature; missing and unseen ones say so."""
    special = {MISSING_ID: MISSING, UNSEEN_ID: "<unseen>"}
    if column in encoder.crosses:
        codes, names = encoder.crosses[column], {one.column: one.name for one in encoder.features[::-1]}
        parts = [namer(encoder, names[part]) for part in codes.cross.of]
        return lambda id_: (
            special.get(int(id_))
            or " x ".join(part(one) for part, one in zip(parts, codes.ids_of(int(id_)), strict=True))
        )
    vocabulary = {**encoder.vocabularies, **encoder.values}[column]
    return lambda id_: special.get(int(id_)) or str(vocabulary.text_of(int(id_)))


def raw_numbers(encoder: Encoder, rows: EncodedRows) -> Floats:
    """The numbers behind encoded rows, NaN where one was missing. Of a number that is a scalar alone it is where it is
    what stands for a missing one, in a column that has any among the training rows. Shape: N rows -> (N, C).
    """
    numbers = encoder.raw_numbers(rows)
    absent = np.isnan(numbers)
    start = 0
    for place, (name, slots) in enumerate(encoder.numbers.items()):
        if slots.width == 1 and slots.values is None and encoder.statistics[name].missing:
            absent[:, place] = rows.numeric[:, start] == slots.floats(np.array([np.nan]))[0, 0]
        start += slots.width
    numbers[np.isnan(numbers)] = 0.0
    for column, usual in zip(numbers.T, np.median(np.abs(numbers), axis=0), strict=True):
        if usual > 0:  # drop the digits that float32 does not keep: a 0 must not read 2e-08
            np.round(column, DIGITS - int(np.floor(np.log10(usual))), out=column)
    numbers[absent] = np.nan
    return numbers


def number_text(number: float) -> str:
    """A number in few digits.

    >>> [number_text(number) for number in (0.0, 0.12345, 30.0, 2024.0, 1.5e9)]
    ['0', '0.1235', '30', '2024', '1.5e+09']
    """
    return f"{number:.0f}" if 1e3 <= abs(number) < 1e7 else f"{number + 0.0:.4g}"
