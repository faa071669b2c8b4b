"""The raw values behind encoded rows, as a person reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossrank.data import MISSING_ID, UNSEEN_ID, Encoder
from crossrank.evaluation.grouped import Floats

MISSING = "<missing>"
DIGITS = 5  # below a column's usual size; float32 keeps six or seven


def namer(encoder: Encoder, column: str) -> Callable[[Any], str]:
    """What tells the text of an id of a categorical or multivalent column; missing and unseen ones say so."""
    special, vocabulary = {MISSING_ID: MISSING, UNSEEN_ID: "<unseen>"}, encoder.vocabularies[column]
    return lambda id_: special.get(int(id_)) or str(vocabulary.text_of(int(id_)))


def raw_numbers(encoder: Encoder, scaled: NDArray[np.float32]) -> Floats:
    """The numbers behind scaled ones, NaN where one was missing: where it is what stands for a missing one, in a column
    that has any among the training rows. Shape: (N, M) -> (N, M).
    """
    numbers = encoder.scaling.restore(scaled)
    filled = encoder.scaling.scale(np.full((1, scaled.shape[1]), np.nan))
    some_missing = np.array([encoder.statistics[column.name].missing > 0 for column in encoder.schema.numeric], bool)
    for column, usual in zip(numbers.T, np.median(np.abs(numbers), axis=0), strict=True):
        if usual > 0:  # drop the digits that float32 does not keep: a 0 must not read 2e-08
            np.round(column, DIGITS - int(np.floor(np.log10(usual))), out=column)
    numbers[(scaled == filled) & some_missing] = np.nan
    return numbers


def number_text(number: float) -> str:
    """A number in few digits.

    >>> [number_text(number) for number in (0.0, 0.12345, 30.0, 2024.0, 1.5e9)]
    ['0', '0.1235', '30', '2024', '1.5e+09']
    """
    return f"{number:.0f}" if 1e3 <= abs(number) < 1e7 else f"{number + 0.0:.4g}"
