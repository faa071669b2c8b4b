"""A memory of pairs: a column made of the values that a row has in some others."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from crossrank.config import setting
from crossrank.errors import SchemaError, listing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cross:
    """What training rows with the same values in one, two or more categorical columns (a cell) were like.

    ``ids``: each cell that is frequent enough has a vector of its own, as a value has. They start at zero, so a cross
    that is added to a trained model changes nothing at first. ``statistics``: two numbers, how many rows of the cell
    there were and how their labels differ from the mean (:mod:`crossrank.data.ordered`); a training row's are those of
    the rows before it in an order, so that it never sees its own label.

    The cell of a value that is missing or was not kept is that of all such values.

    Example:
        >>> Cross(of=("user", "item")).name
        'user x item'
    """

    kind: ClassVar[str] = "cross"
    of: tuple[str, ...] = setting((), "the categorical columns whose values make the cell")
    ids: bool = setting(True, "give cells ids; of a single column, which has its own, always false")
    statistics: bool = setting(True, "give how often the cell was seen, and its label so far")
    min_count: int = setting(5, "cells seen less often in training share one id")
    width: int = setting(4, "of a cell's vector")

    def __post_init__(self) -> None:
        if not self.of or len({*self.of}) < len(self.of):
            raise SchemaError(f"A cross is of different columns, at least one; got {listing(self.of)}.")
        if len(self.of) == 1:
            object.__setattr__(self, "ids", False)
        if not (self.ids or self.statistics):
            raise SchemaError(
                f"The cross of {listing(self.of)} must have ids or statistics; got neither.",
                hint="Of a single column there are statistics only.",
            )
        for key in ("min_count", "width"):
            if getattr(self, key) < 1:
                raise SchemaError(f"{key} of the cross of {listing(self.of)} must be at least 1.")

    @property
    def statistics_name(self) -> str:
        """The name of its numbers."""
        return f"{' x '.join(self.of)} (statistics)"

    @property
    def name(self) -> str:
        """The name of its ids where it has them, and of the column."""
        return " x ".join(self.of) if self.ids else self.statistics_name
