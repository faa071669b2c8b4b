"""What a line of delimited text means, one record at a time.

This is the slow and exact reading: :mod:`crossrank.data.delimited` uses it for the header, and for a block in which
its fast reading met something unusual, to name the line or to leave it out. The rules are those of RFC 4180: a field
may stand in double quotes, in which separators and line ends are text and ``""`` is one quote. Lines end in LF or
CRLF; an empty line is no record; a quote inside an unquoted field is text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

SEPARATORS = (",", "\t", ";", "|")


@dataclasses.dataclass(frozen=True)
class Flaw:
    """Why a record cannot be read: ``reason`` is what is counted, ``must`` and ``got`` what is told."""

    reason: str
    must: str
    got: str


@dataclasses.dataclass(frozen=True)
class Record:
    """One record: the line it starts at, the place after it in the block, and its fields (none: empty) or its flaw."""

    line: int
    end: int
    fields: Sequence[str] = ()
    flaw: Flaw | None = None


class _BadQuoteError(Exception):
    """A quoted field goes on after its closing quote."""


class _OpenQuoteError(_BadQuoteError):
    """A quoted field is not closed before the block ends."""


def read_records(
    block: bytes, separator: str, columns: Sequence[str] = (), *, line: int = 1, last: bool = True
) -> Iterator[Record]:
    """The records of a block of whole lines, empty lines included.

    Args:
        block: text that ends in a line feed.
        separator: one ASCII character.
        columns: the names of the fields that each record must have; empty for any number of fields.
        line: the number of the block's first line.
        last: nothing follows this block. Where something does, a record that is still inside quotes at the end is left
            for the next block.

    After a bad quote reading goes on at the next line, since nobody can tell where the field was meant to end.
    """
    start = 0
    while start < len(block):
        end = block.index(b"\n", start) + 1
        if block[start:end] in (b"\n", b"\r\n"):
            yield Record(line, end)
        else:
            try:
                fields, end = _split(block, start, end, separator.encode())
                yield _checked(fields, columns, line, end)
            except _BadQuoteError as problem:
                unclosed = isinstance(problem, _OpenQuoteError)
                if unclosed and not last:
                    return
                got = "one that is never closed" if unclosed else "one that goes on after its closing quote"
                yield Record(line, end, flaw=Flaw("unbalanced quote", "close each quoted field at its end", got))
        line += block.count(b"\n", start, end)
        start = end


def likely_separator(line: str) -> str | None:
    """The usual separator that stands most often in a line, quoted parts left out.

    >>> likely_separator('label;"a,b,c,d";hour')
    ';'
    """
    bare = "".join(line.split('"')[::2])
    found = max(SEPARATORS, key=bare.count)
    return found if found in bare else None


def _split(block: bytes, start: int, line_end: int, separator: bytes) -> tuple[list[bytes], int]:
    """The raw fields of the record that starts at ``start``, and the place after it."""
    line = block[start : line_end - 1].removesuffix(b"\r")
    if b'"' not in line:
        return line.split(separator), line_end
    fields = []
    while True:
        if block[start : start + 1] == b'"':
            close = _closing_quote(block, start + 1)
            fields.append(block[start + 1 : close].replace(b'""', b'"'))
            stop = close + 1
            line_end = block.index(b"\n", stop) + 1
        else:
            stop = block.find(separator, start, line_end)
            if stop < 0:
                stop = line_end - (2 if block[start:line_end].endswith(b"\r\n") else 1)
            fields.append(block[start:stop])
        if block[stop:line_end] in (b"\n", b"\r\n"):
            return fields, line_end
        if block[stop : stop + 1] != separator:
            raise _BadQuoteError
        start = stop + 1


def _closing_quote(block: bytes, start: int) -> int:
    """The place of the quote that closes the field whose text starts here."""
    while (start := block.find(b'"', start)) >= 0:
        if block[start + 1 : start + 2] != b'"':
            return start
        start += 2
    raise _OpenQuoteError


def _checked(raw: list[bytes], columns: Sequence[str], line: int, end: int) -> Record:
    if columns and len(raw) != len(columns):
        reason = "too few fields" if len(raw) < len(columns) else "too many fields"
        return Record(line, end, flaw=Flaw(reason, f"have {len(columns)} fields, one per column", str(len(raw))))
    fields = []
    for index, field in enumerate(raw):
        place = f"in column '{columns[index]}'" if columns else f"in field {index + 1}"
        if b"\0" in field:
            return Record(line, end, flaw=Flaw("NUL byte", "be text", f"a NUL byte {place}"))
        if b"\r" in field.replace(b"\r\n", b""):
            flaw = Flaw("lone carriage return", "end in LF or CRLF", f"a lone carriage return {place}")
            return Record(line, end, flaw=flaw)
        try:
            fields.append(field.decode())
        except UnicodeDecodeError as error:
            flaw = Flaw("invalid UTF-8", "be UTF-8", f"the byte 0x{field[error.start]:02X} {place}")
            return Record(line, end, flaw=flaw)
    return Record(line, end, fields)
