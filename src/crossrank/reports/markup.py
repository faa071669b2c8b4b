"""Pieces of HTML that need no script: tables, figures in words."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: Any) -> str:
    """A value as HTML; numbers with separators, None as a dash."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return html.escape(str(value))


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    strong: int | None = None,
    words: Sequence[int] = (0,),
    wrap: int | None = None,
) -> Markup:
    """A table that scrolls inside its own frame where it is too wide.

    Args:
        headers: of the columns.
        rows: the cells.
        strong: the number of the row to set apart.
        words: the columns of words; the others hold numbers and stand right.
        wrap: the column whose long words may take several lines.
    """

    def cell(tag: str, position: int, value: Any) -> str:
        name = ' class="wrap"' if position == wrap else "" if position in words else ' class="n"'
        scope = ' scope="col"' if tag == "th" else ""
        return f"<{tag}{name}{scope}>{text(value)}</{tag}>"

    head = "".join(cell("th", position, header) for position, header in enumerate(headers))
    body = []
    for number, row in enumerate(rows):
        cells = "".join(cell("td", position, value) for position, value in enumerate(row))
        body.append(f'<tr class="this">{cells}</tr>' if number == strong else f"<tr>{cells}</tr>")
    return Markup(
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    )


def amount(value: float | None, digits: int = 5) -> str | None:
    """A number of any size by its leading digits, never cut before the point.

    >>> amount(0.52345678), amount(-48213.2871), amount(1234567.0), amount(0.0000123456), amount(0)
    ('0.52346', '−48,213', '1,234,567', '0.000012346', '0')
    """
    if not value:
        return None if value is None else "0"
    return f"{value:,.{places(value, digits)}f}".replace("-", "−")


def places(value: float, digits: int) -> int:
    """The decimals that show so many leading digits of a number."""
    return max(digits - 1 - math.floor(math.log10(abs(value))), 0)


def decimal(value: float | None, digits: int = 4) -> str | None:
    """
    >>> decimal(-1.23456), decimal(-0.00001)
    ('−1.2346', '0.0000')
    """
    return None if value is None else f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def signed(value: float | None, digits: int = 4) -> str | None:
    """
    >>> signed(-0.00831)
    '−0.0083'
    """
    return None if value is None else f"{value:+.{digits}f}".replace("-", "−")


def percent(share: float) -> str:
    """
    >>> percent(0.0), percent(0.00004), percent(0.123)
    ('0%', '<0.1%', '12.3%')
    """
    if share == 0:
        return "0%"
    return "<0.1%" if share < 0.001 else f"{share:.1%}"


def brief(count: float) -> str:
    """
    >>> brief(950), brief(17357), brief(2_400_000)
    ('950', '17.4 k', '2.4 M')
    """
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= limit:
            return f"{count / limit:.3g}{unit}"
    return f"{count:g}"
