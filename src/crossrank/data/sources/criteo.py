"""Criteo's Display Advertising Challenge: a week of ad impressions, 45 million rows in order of time.

``train.txt`` has a label, 13 counts and 26 hashed categories per line, cut at tabs, without header line; what is
missing is left blank.
"""

from __future__ import annotations

from pathlib import Path

from crossrank.data.delimited import OnError
from crossrank.data.sources.locate import locate
from crossrank.data.splits import SplitSettings
from crossrank.data.table import Table, open_table
from crossrank.schema import Categorical, Label, Numeric, Schema

NUMERIC = tuple(f"I{index}" for index in range(1, 14))
CATEGORICAL = tuple(f"C{index}" for index in range(1, 27))
COLUMNS = ("label", *NUMERIC, *CATEGORICAL)
PUBLISHER = "Criteo AI Lab offers it as the Kaggle Display Advertising Challenge dataset; unpack it and give train.txt."

# The paper: six of seven days train; the last day is halved at random for validation and test.
SPLIT = SplitSettings(method="time-then-random", fractions=(6 / 7, 1 / 14, 1 / 14))


def open_set(path: Path | str, *, on_error: OnError = "raise") -> Table:
    """``train.txt`` as a table, from the file, its gzip, or the folder it lies in."""
    file = locate(path, ("train.txt", "train.txt.gz"), PUBLISHER)
    return open_table(file, separator="\t", header=COLUMNS, on_error=on_error)


def schema(*, min_count: int = 10) -> Schema:
    """The paper's features: log(x + 4) of I2, log(x + 1) of the other numbers, and the categories.

    :mod:`crossrank.data.sources.criteo_auto` has more of the numbers.

    Args:
        min_count: categories seen less often in training share one id. Published comparisons use 10; the paper speaks
            of 2.3 million ids in all, which takes a lower threshold.
    """
    numeric = [
        Numeric(name=name, log_shift=4.0 if name == "I2" else 1.0, standardize=False, encoding="scalar")
        for name in NUMERIC
    ]
    categorical = [Categorical(name=name, min_count=min_count) for name in CATEGORICAL]
    return Schema([*numeric, *categorical], Label(name="label"))
