"""Delimited text as data frames: fast where every byte is as expected, exact about the place where one is not.

A block of whole lines is checked with numpy (as many separators in each line as the header has, quotes around whole
fields, no NUL, no lone CR) and handed to polars, which alone would read a short line as missing values. A block that
fails a check, or that polars refuses, is read again by :mod:`crossrank.data.records`, whose word counts. Columns that
are wanted as words are cut out of a plain block by numpy alone, for half of what it costs to make texts of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crossrank.data.lines import UNIT_SEPARATOR, UTF_16_MARKS, LineBuffer
from crossrank.data.on_demand import pl
from crossrank.data.packed_texts import PAD, WORD_BYTES, Bytes, Places, Words, words_in
from crossrank.data.parallel import for_each
from crossrank.data.parts import Piece, check_names
from crossrank.data.records import Flaw, Record, likely_separator, read_records
from crossrank.errors import DataError

OnError: TypeAlias = Literal["raise", "skip"]
BOM = b"\xef\xbb\xbf"
MISREAD = (BOM, b"x\x01", b"x^", b"x\x9c", b"x\xda")  # polars would drop the first and decompress the others
HEADER_LINES = 1 << 10  # a name in quotes may have line ends
EVERY_LINE = 1 << 62
ENCODING_HINT = 'Is it in another encoding? Give encoding="cp1252", or leave such lines out with on_error="skip".'
SKIP_HINT = 'Mend or remove it, or leave such lines out with on_error="skip".'
PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")  # how gzip and zstandard begin
COUNTED_BYTES = 1 << 20
CACHED_LINES = 2048  # whose fields are cut at once: more would leave the processor's caches on the way
LF, CR, QUOTE = b'\n\r"'


class DelimitedFile:
    """One text file, a record per row.

    Args:
        path: plain, gzip or zstandard text.
        separator: what stands between two fields; None to look at the suffix, then at the first line.
        header: the column names, where the file has no header line.
        on_error: raise for the first line that cannot be read, or leave such lines out and count them.
        encoding: of the text, as :class:`LineBuffer` takes it.
    """

    unit = "line"

    def __init__(
        self,
        path: Path,
        separator: str | None,
        header: Sequence[str] | None,
        on_error: OnError,
        encoding: str | None = None,
    ) -> None:
        self.path, self.name, self.on_error = path, path.name, on_error
        self._recoding = (encoding, separator if separator and len(separator) > 1 else None)
        separator = UNIT_SEPARATOR if self._recoding[1] else separator
        with LineBuffer(path, *self._recoding) as buffer:
            first_line = self._first_line(buffer)
            self.separator = separator or _guess_separator(path, first_line)
            buffer.fill(HEADER_LINES)
            first = next(read_records(buffer.peek(HEADER_LINES)[0].tobytes(), self.separator, line=buffer.line))
            if first.flaw and header is None:
                raise self._error(first.line, first.flaw, hint="Nothing can be read without the header line: mend it.")
            likely = likely_separator(first_line)
            if len(first.fields) == 1 and likely and likely != self.separator:
                raise DataError(
                    f"The fields of {self.name} must be cut at {self.separator!r}; its first line seems to be cut at "
                    f"{likely!r}.",
                    hint=f"Say so with separator={likely!r}.",
                )
            self.columns = tuple(first.fields if header is None else header)
            if header is None:
                buffer.take(first.end)
            self._head_bytes = buffer.taken
        hint = "" if header else "If the file has no header line, write one first, or in Python give header=[...]."
        check_names(self.columns, self.name, hint=hint)

    def _first_line(self, buffer: LineBuffer) -> str:
        """The first line with something in it; what stands before it is taken."""
        buffer.fill(1)
        start = buffer.peek(1)[0].tobytes()
        if start.startswith(UTF_16_MARKS):
            raise DataError(f"{self.name} must be UTF-8; got UTF-16.", hint='Say so with encoding="utf-16".')
        if start.startswith(BOM):
            buffer.take(len(BOM))
        while (line := buffer.peek(1)[0].tobytes()) in (b"\n", b"\r\n"):
            buffer.take(len(line))
            buffer.fill(1)
        if not line:
            raise DataError(f"{self.name} must have a line per row; got an empty file.", hint="Was it written in full?")
        return line.decode(errors="replace").rstrip("\r\n")

    def chunks(
        self, columns: Sequence[str], rows: int, skipped: Counter[str], as_words: Sequence[str] = ()
    ) -> Iterator[Piece]:
        """The rows in pieces of at most ``rows`` lines; what is left out is added to ``skipped``.

        Some of the columns may come as words, where that is quicker and no text of the block is too long for it.
        """
        with LineBuffer(self.path, *self._recoding) as buffer:
            buffer.skip(self._head_bytes)
            while piece := self._next(buffer, columns, rows, skipped, as_words):
                if piece.frame.height:
                    yield piece

    def _next(
        self, buffer: LineBuffer, columns: Sequence[str], rows: int, skipped: Counter[str], as_words: Sequence[str]
    ) -> Piece | None:
        buffer.fill(rows)
        block, ends = buffer.peek(rows)
        if not len(block):
            return None
        words = self._words(block, ends, as_words) if as_words else {}
        if len(words) == len(columns):
            frame, numbers, used = pl.DataFrame(height=len(ends)), _count(buffer.line, ends), len(block)
        else:
            others = [name for name in columns if name not in words]
            frame, numbers, used = self._fast(block.tobytes(), ends, buffer.line, others) or self._slow(
                buffer, rows, others, skipped
            )
        buffer.take(used)
        return Piece(frame, numbers, buffer.share_done, words)

    def num_rows(self) -> int | None:
        """How many rows there are, where counting line feeds tells it; None for quotes, blank lines, packed text."""
        if self.on_error == "skip" or any(self._recoding):
            return None
        count, last = 0, b"\n"
        with self.path.open("rb") as file:
            packed = file.read(4).startswith((*PACKED, *UTF_16_MARKS))
            file.seek(self._head_bytes)
            while block := file.read(COUNTED_BYTES):
                ends = np.frombuffer(last + block.replace(b"\r", b""), np.uint8) == LF
                if packed or b'"' in block or (ends[1:] & ends[:-1]).any():
                    return None
                count, last = count + int(np.count_nonzero(ends[1:])), b"\n" if ends[-1] else b"x"
        return count + (last != b"\n")

    def _words(self, block: Bytes, ends: Places, names: Sequence[str]) -> dict[str, Words]:
        """Those of the columns whose texts are short, as words; none where the block has more than plain lines."""
        names = sorted(names, key=self.columns.index)
        known = {name: place for place, name in enumerate(self.columns)}
        places = [known[name] for name in names] if len(names) < len(self.columns) else slice(None)
        words = np.empty((len(names), len(ends)), np.uint64)

        def cut(first: int) -> NDArray[np.bool_] | None:
            some = ends[first : first + CACHED_LINES]
            start = int(ends[first - 1]) + 1 if first else 0
            found = _fields(block[start : some[-1] + 1], some - start, ord(self.separator), len(self.columns))
            if found is None:
                return None
            words[:, first : first + len(some)] = found[0].T[places]
            return found[1][places]

        firsts = range(0, len(ends), CACHED_LINES)
        cut_all = for_each(firsts, cut, num_rows=len(ends), stages=2)  # while the last chunk is coded
        short = [some for some in cut_all if some is not None]
        if len(short) < len(firsts):
            return {}
        return {name: column for name, column, good in zip(names, words, np.all(short, axis=0), strict=True) if good}

    def _fast(
        self, block: bytes, ends: Places, line: int, columns: Sequence[str]
    ) -> tuple[pl.DataFrame, Sequence[int], int] | None:
        """The records of a block, their lines and their size in bytes; None where anything is unusual."""
        if b"\0" in block or block.startswith(MISREAD):
            return None
        if b"\r" in block and block.count(b"\r") != block.count(b"\r\n"):
            return None
        raw = np.frombuffer(block, np.uint8)
        separators = raw == ord(self.separator)
        lines = _count(line, ends)
        quoted = b'"' in block
        if quoted:
            inside = np.bitwise_xor.accumulate((raw == QUOTE).view(np.uint8)).view(np.bool_)
            every_end, ends = ends, ends[~inside[ends]]
            if not len(ends):
                return None
            size = int(ends[-1]) + 1
            block, raw, separators = block[:size], raw[:size], separators[:size] & ~inside[:size]
            if not _quotes_are_clean(raw, ord(self.separator)):
                return None
            lines = (line + np.searchsorted(every_end, np.append(0, ends[:-1] + 1))).tolist()
        if not _lines_are_even(raw, ends, np.flatnonzero(separators), len(self.columns) - 1):
            return None
        frame = self._parse(block, columns, quoted=quoted)
        return None if frame is None or frame.height != len(ends) else (frame, lines, len(block))

    def _parse(self, block: bytes, columns: Sequence[str], *, quoted: bool) -> pl.DataFrame | None:
        schema = dict.fromkeys(self.columns, pl.String)
        quote = '"' if quoted else None
        rows = pl.scan_csv(block, separator=self.separator, has_header=False, schema=schema, quote_char=quote)
        rows = rows.select(columns)
        if quoted:
            rows = rows.with_columns(pl.all().replace("", None))  # polars reads a quoted nothing as ""
        try:
            return rows.collect()
        except (pl.exceptions.PolarsError, OSError):
            return None

    def _slow(
        self, buffer: LineBuffer, rows: int, columns: Sequence[str], skipped: Counter[str]
    ) -> tuple[pl.DataFrame, Sequence[int], int]:
        """The same, one record at a time; raises or counts what cannot be read."""
        records = list(self._records(buffer, rows, last=buffer.holds_rest(rows)))
        if not records:  # a quoted field longer than the block: look as far as a record may reach
            buffer.fill(EVERY_LINE)
            records = [next(self._records(buffer, EVERY_LINE, last=True))]
        good = []
        for record in records:
            if record.flaw and self.on_error == "raise":
                hint = ENCODING_HINT if record.flaw.reason == "invalid UTF-8" else SKIP_HINT
                raise self._error(record.line, record.flaw, hint=hint)
            if record.flaw:
                skipped[record.flaw.reason] += 1
            elif record.fields:
                good.append(record)
        places = {name: self.columns.index(name) for name in columns}
        cells = {name: [record.fields[place] or None for record in good] for name, place in places.items()}
        frame = pl.DataFrame(cells, schema=dict.fromkeys(columns, pl.String))
        return frame, [record.line for record in good], records[-1].end

    def _records(self, buffer: LineBuffer, lines: int, *, last: bool) -> Iterator[Record]:
        block, _ = buffer.peek(lines)
        return read_records(block.tobytes(), self.separator, self.columns, line=buffer.line, last=last)

    def _error(self, line: int, flaw: Flaw, *, hint: str) -> DataError:
        return DataError(f"Line {line:,} of {self.name} must {flaw.must}; got {flaw.got}.", hint=hint)


def _count(line: int, ends: Places) -> Sequence[int]:
    return range(line, line + len(ends))


def _fields(raw: Bytes, ends: Places, separator: int, width: int) -> tuple[Words, NDArray[np.bool_]] | None:
    """The words (N, F) of all fields of plain lines, and which columns (F,) are short enough; None for other lines."""
    text = b"".join((PAD, raw.data))
    if not text.isascii() or any(mark in text for mark in (b"\0", b"\r", b'"')):
        return None
    marks = raw == separator
    marks |= raw == LF
    stops = np.flatnonzero(marks)
    if len(stops) != width * len(ends) or (stops[width - 1 :: width] != ends).any():
        return None  # some line has more or fewer fields
    sizes = stops.copy()
    sizes[1:] -= stops[:-1]
    sizes[1:] -= 1  # the separator
    if width == 1 and not sizes.all():
        return None  # an empty line
    short = np.ones(width, bool)
    if sizes.max() > WORD_BYTES:
        short &= (sizes.reshape(-1, width) <= WORD_BYTES).all(axis=0)
    return words_in(text, stops, sizes).reshape(-1, width), short


def _guess_separator(path: Path, first_line: str) -> str:
    suffixes = path.suffixes[-2:]
    return "\t" if ".tsv" in suffixes or ".tab" in suffixes else likely_separator(first_line) or ","


def _quotes_are_clean(raw: Bytes, separator: int) -> bool:
    """Whether quotes, an even number of them, stand only around whole fields and doubled inside them."""
    places = np.flatnonzero(raw == QUOTE)
    before = raw[places[0::2] - 1]
    if len(places) and places[0] == 0:
        before[0] = LF
    after = raw[places[1::2] + 1]
    return bool(np.isin(before, (separator, LF, QUOTE)).all() and np.isin(after, (separator, LF, CR, QUOTE)).all())


def _lines_are_even(raw: Bytes, ends: Places, separators: Places, expected: int) -> bool:
    """Whether no line is empty and each has the expected number of separators."""
    starts = np.append(0, ends[:-1] + 1)
    if np.isin(raw[starts], (LF, CR)).any() or len(separators) != expected * len(ends):
        return False
    grid = separators.reshape(len(ends), expected)
    return expected == 0 or bool((grid[:, 0] >= starts).all() and (grid[:, -1] < ends).all())
