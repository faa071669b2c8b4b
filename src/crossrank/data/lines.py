"""Whole lines of a text file, plain or compressed, as bytes."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl

from crossrank.data.words import Bytes, Places
from crossrank.errors import DataError

READ_BYTES = 1 << 20  # asked of the operating system at once
HELD_BYTES = 64 << 20  # held of a file at once, and so the longest line or quoted field
LINE_FEED = np.array([ord("\n")], np.uint8)
NOTHING = LINE_FEED[:0]


class LineBuffer:
    """The part of a file that is being read: it starts at a line not yet taken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 1  # the number of the first line not yet taken
        self.taken = 0  # bytes
        self._data, self._start, self._ended = NOTHING, 0, False
        self._ends: Places = np.empty(0, np.int64)  # where in the data the line feeds are
        try:
            self._file = path.open("rb")
            self._size = max(path.stat().st_size, 1)
            self._stream = _decompressed(self._file, path)
        except OSError as error:
            raise unreadable(path, error) from None

    def __enter__(self) -> LineBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def share_done(self) -> float:
        if isinstance(self._stream, _Zstandard):  # polars does not tell; text shrinks about fivefold
            return min(self.taken / (5 * self._size), 1.0)
        return min(self._file.tell() / self._size, 1.0)

    def fill(self, lines: int) -> None:
        """Hold so many lines, or all that are left, or as much as may be held."""
        if len(self._ends) >= lines or self._ended:
            return
        pieces, ends = [self._data[self._start :]], [self._ends - self._start]
        size, count = len(pieces[0]), len(self._ends)
        while not self._ended and count < lines and size < HELD_BYTES:
            piece = np.frombuffer(self._read(), np.uint8)
            if not len(piece):
                self._ended = True
                piece = LINE_FEED[: 1 if size and pieces[-1][-1:] != LINE_FEED else 0]
            ends.append(np.flatnonzero(piece == LINE_FEED) + size)
            pieces.append(piece)
            size += len(piece)
            count += len(ends[-1])
        self._data, self._ends, self._start = np.concatenate(pieces), np.concatenate(ends), 0
        if size and not count:
            raise DataError(
                f"A line of {self.path.name} may have {HELD_BYTES >> 20} MiB; line {self.line:,} has more.",
                hint="Is it text with one line per row?",
            )

    def peek(self, lines: int) -> tuple[Bytes, Places]:
        """The first lines that are held, at most so many, and where in them the line feeds are; not a copy."""
        ends = self._ends[:lines]
        stop = int(ends[-1]) + 1 if len(ends) else self._start
        return self._data[self._start : stop], ends - self._start

    def holds_rest(self, lines: int) -> bool:
        """Whether the file ends within so many lines."""
        return self._ended and len(self._ends) <= lines

    def take(self, size: int) -> None:
        """Let go of the first ``size`` bytes."""
        self._start += size
        lines = int(np.searchsorted(self._ends, self._start))
        self._ends = self._ends[lines:]
        self.line += lines
        self.taken += size
        if self._start > len(self._data) // 2:  # what is taken is not kept while more is read
            self._data, self._ends = self._data[self._start :].copy(), self._ends - self._start
            self._start = 0

    def skip(self, size: int) -> None:
        """Take so many bytes, held or not."""
        while self.taken < size:
            self.fill(1)
            self.take(min(size - self.taken, len(self.peek(1)[0])))

    def _read(self) -> bytes:
        try:
            return self._stream.read(READ_BYTES)
        except pl.exceptions.ComputeError as error:
            hint = "Decompress it first: then the message names the line."
            raise DataError(f"{self.path.name} must be UTF-8; got {error}.", hint=hint) from None
        except (OSError, EOFError, zlib.error) as error:
            raise unreadable(self.path, error) from None


def unreadable(path: Path, error: BaseException) -> DataError:
    """What to tell when a file cannot be opened or read to its end."""
    hints: dict[type, str] = {FileNotFoundError: "Check the path.", PermissionError: "Check who may read it."}
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    hint = hints.get(type(error), "It may be damaged or incomplete: fetch or write it again.")
    return DataError(f"{path} cannot be read: {reason.rstrip('.')}.", hint=hint)


class _Zstandard:
    """The text of a zstandard file as polars decompresses it; lines come without their carriage returns."""

    def __init__(self, path: Path) -> None:
        self._batches = iter(pl.scan_lines(path, glob=False).collect_batches(chunk_size=1 << 14, maintain_order=True))

    def read(self, _: int) -> bytes:
        batch = next(self._batches, None)
        return b"" if batch is None else str(batch.to_series().str.join("\n").item()).encode() + b"\n"


def _decompressed(file: IO[bytes], path: Path) -> IO[bytes] | gzip.GzipFile | _Zstandard:
    magic = file.read(4)
    file.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if magic == b"\x28\xb5\x2f\xfd":
        return _Zstandard(path)
    if magic and path.suffix in (".gz", ".zst"):
        file.close()
        raise OSError("it is not compressed as its suffix says")
    return file
