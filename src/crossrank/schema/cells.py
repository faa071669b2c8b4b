"""What is said of the cells of a column of any kind, and numbers as people write them."""

from __future__ import annotations

import dataclasses
import re
from functools import cached_property
from typing import Literal, TypeAlias

from crossrank.config import setting

DecimalMark: TypeAlias = Literal[".", ","]
Side: TypeAlias = Literal["context", "item"]
MONEY = r"[$€£¥₹]|USD|EUR|GBP|CHF"


def _written(decimal: str, group: str) -> re.Pattern[str]:
    digits = rf"\d+|\d{{1,3}}(?:[{group}'’ \u00a0\u202f]\d{{3}})+"  # 1234 or 1,234 or 1 234
    return re.compile(
        rf"(?P<minus>[-−(])?\s?\+?(?:{MONEY})?\s?(?P<inner>[-−])?(?P<whole>{digits})?"
        rf"(?:{re.escape(decimal)}(?P<rest>\d+))?\s?(?:{MONEY}|%)?\)?",
        re.ASCII,
    )


WRITTEN: dict[DecimalMark, re.Pattern[str]] = {".": _written(".", ","), ",": _written(",", ".")}
NO_DIGIT = re.compile(r"\D", re.ASCII)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableColumn:
    """What every kind of column says of its cells."""

    name: str
    source: str | None = setting(None, "the table's column, where it has another name than the feature")
    missing: tuple[str, ...] = setting(
        (), "texts that count as missing, whatever their case; an empty cell always does"
    )
    side: Side | None = setting(None, "for ranking: 'context', the same for all candidates of a request, or 'item'")

    @property
    def input(self) -> str:
        """The column of the table that it is read from."""
        return self.name if self.source is None else self.source

    @cached_property
    def markers(self) -> frozenset[str]:
        """The texts that count as missing, as they are compared."""
        return frozenset(text.strip().lower() for text in self.missing)


def plain_number(text: str, decimal: DecimalMark) -> str | None:
    """A number as people write it, with this decimal mark, as programs write it; None where it is none.

    >>> plain_number("$1,234.50", "."), plain_number("-1.234,5 €", ","), plain_number("12.5%", ".")
    ('1234.50', '-1234.5', '12.5')
    """
    found = WRITTEN[decimal].fullmatch(text.strip())
    if found is None or not (found["whole"] or found["rest"]) or (found["minus"] and found["inner"]):
        return None
    if (found["minus"] == "(") != text.rstrip().endswith(")"):
        return None
    sign = "-" if found["minus"] or found["inner"] else ""
    return f"{sign}{NO_DIGIT.sub('', found['whole'] or '0')}.{found['rest'] or '0'}".removesuffix(".0")
