"""Where the rows of a table come from: the protocol that files, data frames and sources of one's own keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from crossrank.errors import SchemaError, listing

if TYPE_CHECKING:
    import polars as pl

    from crossrank.data.packed_texts import Words


class Piece(NamedTuple):
    """Some rows of a part.

    Attributes:
        frame: the columns that were asked for, without those among the words.
        numbers: of each row in the part, counted from 1, for messages.
        share_done: how much of the part is read by now, from 0 to 1; an estimate will do.
        words: for readers of text that can do without making texts: short ones as 64-bit words.
    """

    frame: pl.DataFrame
    numbers: Sequence[int]
    share_done: float
    words: Mapping[str, Words] = {}


@runtime_checkable
class Part(Protocol):
    """A source of rows: a file, a data frame, a query. ``open_table`` makes a table of one, ``Table`` of several.

    Attributes:
        name: what messages call it.
        unit: what they call a row of it: "row" or "line".
        columns: the names of all its columns.
    """

    name: str
    unit: str
    columns: tuple[str, ...]

    def chunks(self, columns: Sequence[str], rows: int, skipped: Counter[str]) -> Iterator[Piece]:
        """All rows, the same ones in the same order each time it is called, perhaps by several threads at once.

        Args:
            columns: which to read, in this order.
            rows: the most rows of a piece.
            skipped: where rows that are left out are counted by their reason.
        """

    def num_rows(self) -> int | None:
        """How many rows there are, if that can be told without reading them."""


def check_names(names: Sequence[str], source: str, *, hint: str = "") -> None:
    """Refuse columns of one name."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise SchemaError(f"The columns of {source} must have different names; got {listing(twice)} twice.", hint=hint)
