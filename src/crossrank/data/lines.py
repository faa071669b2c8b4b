"""Whole lines of a text file, plain or compressed, as bytes."""

from __future__ import annotations

import codecs
import gzip
import json
import subprocess
import sys
import zlib
from io import BufferedReader
from pathlib import Path
from typing import TypeAlias

import numpy as np

from crossrank.data.packed_texts import Bytes, Places
from crossrank.data.zstandard_decoder import DAMAGED, MOST_BYTES, NO_TEXT
from crossrank.errors import ConfigError, DataError

READ_BYTES = 1 << 20  # asked of the operating system at once
HELD_BYTES = 64 << 20  # held of a file at once, and so the longest line or quoted field
LINE_FEED = ord("\n")
UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
UNIT_SEPARATOR = "\x1f"  # stands for a separator of several characters once the text is read


class LineBuffer:
    """The part of a file that is being read: it starts at a line not yet taken.

    Args:
        path: plain, gzip or zstandard text.
        encoding: of the text; None for UTF-8, or UTF-16 where the file begins with its mark. What is held is UTF-8.
        separator: several characters that are held as one, the unit separator.
    """

    def __init__(self, path: Path, encoding: str | None = None, separator: str | None = None) -> None:
        self.path = path
        self.line = 1  # the number of the first line not yet taken
        self.taken = 0  # bytes
        self._data = np.empty(2 * READ_BYTES, np.uint8)
        self._start, self._stop, self._ended = 0, 0, False  # of what is held in the data; whether the file has ended
        self._ends: Places = np.empty(0, np.int64)  # where in the data the line feeds are
        try:
            self._file = path.open("rb")
            self._size = max(path.stat().st_size, 1)
            self._source = _decompressed(self._file, path)
        except OSError as error:
            raise unreadable(path, error) from None
        try:
            self._stream = _recoded(self._source, path, encoding, separator)
        except ConfigError:
            self.__exit__()
            raise

    def __enter__(self) -> LineBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if isinstance(self._source, _Zstandard):
            self._source.close()

    @property
    def share_done(self) -> float:
        if isinstance(self._stream, _Zstandard):  # polars does not tell; text shrinks about fivefold
            return min(self.taken / (5 * self._size), 1.0)
        return min(self._file.tell() / self._size, 1.0)

    def fill(self, lines: int) -> None:
        """Hold so many lines, or all that are left, or as much as may be held."""
        if len(self._ends) >= lines or self._ended:
            return
        size = self._stop - self._start
        self._data[:size] = self._data[self._start : self._stop]
        ends = [self._ends - self._start]
        self._start, self._stop, count = 0, size, len(self._ends)
        while not self._ended and count < lines and self._stop < HELD_BYTES:
            more = self._read()
            ends.append(np.flatnonzero(more == LINE_FEED) + self._stop)
            count += len(ends[-1])
            self._stop += len(more)
        self._ends = np.concatenate(ends)
        if self._stop and not count:
            raise DataError(
                f"A line of {self.path.name} may have {HELD_BYTES >> 20} MiB; line {self.line:,} has more.",
                hint="Is it text with one line per row?",
            )

    def peek(self, lines: int) -> tuple[Bytes, Places]:
        """The first lines that are held, at most so many, and where in them the line feeds are.

        Not a copy: the next :meth:`fill` overwrites them.
        """
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

    def skip(self, size: int) -> None:
        """Take so many bytes, held or not."""
        while self.taken < size:
            self.fill(1)
            self.take(min(size - self.taken, len(self.peek(1)[0])))

    def _read(self) -> Bytes:
        """What follows in the file, behind what is held; a last line without its line feed gets one."""
        if len(self._data) < self._stop + READ_BYTES:
            self._data = np.concatenate([self._data[: self._stop], np.empty(self._stop + READ_BYTES, np.uint8)])
        room = self._data[self._stop : self._stop + READ_BYTES]
        size = self._read_into(room)
        if not size:
            self._ended, room[0] = True, LINE_FEED
            size = 1 if self._stop and self._data[self._stop - 1] != LINE_FEED else 0
        return room[:size]

    def _read_into(self, room: Bytes) -> int:
        try:
            return self._stream.readinto(room.data)
        except (OSError, EOFError, zlib.error) as error:
            raise unreadable(self.path, error) from None


def unreadable(path: Path, error: BaseException) -> DataError:
    """What to tell when a file cannot be opened or read to its end."""
    hints: dict[type, str] = {FileNotFoundError: "Check the path.", PermissionError: "Check who may read it."}
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    hint = hints.get(type(error), "It may be damaged or incomplete: fetch or write it again.")
    return DataError(f"{path} cannot be read: {reason.rstrip('.')}.", hint=hint)


class _Zstandard:
    """The text of a zstandard file as polars decompresses it in another process, whose memory has a bound."""

    def __init__(self, path: Path) -> None:
        program = str(Path(__file__).with_name("zstandard_decoder.py"))
        command = [sys.executable, "-P", program, json.dumps([str(place) for place in sys.path]), str(path.absolute())]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        self._path = path

    def readinto(self, room: memoryview) -> int:
        assert self._process.stdout is not None
        size = int(self._process.stdout.readinto(room) or 0)  # type: ignore[attr-defined]
        if not size and (status := self._process.wait()):
            assert self._process.stderr is not None
            said = self._process.stderr.read().decode(errors="replace").strip()
            if status == DAMAGED:
                raise OSError(said)
            if status == NO_TEXT:
                hint = "Decompress it first: then the message names the line."
                raise DataError(f"{self._path.name} must be UTF-8; got {said}.", hint=hint)
            raise DataError(
                f"{self._path} must be text that can be decompressed in {MOST_BYTES >> 30} GiB; it is not, or damaged.",
                hint="Is it text with one line per row? Else decompress it first.",
            )
        return size

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _decompressed(file: BufferedReader, path: Path) -> BufferedReader | gzip.GzipFile | _Zstandard:
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


def known_encoding(name: str | None) -> str | None:
    """The name of an encoding as Python has it; None for UTF-8, which needs no other reading."""
    try:
        known = None if name is None else codecs.lookup(name).name
        "".encode(known or "utf-8")  # not one from bytes to bytes, such as hex
    except LookupError:
        raise ConfigError(
            f"An encoding must be one that Python knows; got '{name}'.", hint="Usual are utf-8, cp1252 and utf-16."
        ) from None
    return None if known in ("utf-8", "utf-8-sig") else known


class _Recoded:
    """A stream of text in any encoding as UTF-8, with a separator of several characters as one."""

    def __init__(self, stream: _Stream, path: Path, encoding: str | None, separator: str | None) -> None:
        self._stream, self._path, self._encoding = stream, path, encoding or "utf-8"
        self._decoder = codecs.getincrementaldecoder(self._encoding)("strict")
        self._separator, self._kept = separator, ""
        self._raw, self._left, self._ended = bytearray(READ_BYTES), memoryview(b""), False

    def readinto(self, room: memoryview) -> int:
        while not self._left and not self._ended:
            size = self._stream.readinto(memoryview(self._raw))
            self._ended = not size
            self._left = memoryview(self._next(bytes(self._raw[:size])).encode())
        some, self._left = self._left[: len(room)], self._left[len(room) :]
        room[: len(some)] = some
        return len(some)

    def _next(self, raw: bytes) -> str:
        try:
            text = self._kept + self._decoder.decode(raw, final=self._ended)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self._path.name} must be {self._encoding}; got the byte 0x{error.object[error.start]:02X}, which is "
                "not.",
                hint='Give another encoding, such as encoding="cp1252".',
            ) from None
        if self._separator is None:
            return text
        text = text.replace(self._separator, UNIT_SEPARATOR)
        begun = range(0 if self._ended else len(self._separator) - 1, 0, -1)
        size = next((size for size in begun if text.endswith(self._separator[:size])), 0)
        text, self._kept = text[: len(text) - size], text[len(text) - size :]
        return text


_Stream: TypeAlias = BufferedReader | gzip.GzipFile | _Zstandard


def _recoded(stream: _Stream, path: Path, encoding: str | None, separator: str | None) -> _Stream | _Recoded:
    if encoding is None and isinstance(stream, BufferedReader) and stream.peek(2)[:2] in UTF_16_MARKS:
        encoding = "utf-16"
    if encoding is not None and isinstance(stream, _Zstandard):
        raise ConfigError(
            f"Zstandard files must be UTF-8; got encoding '{encoding}' for {path.name}.", hint="Decompress it first."
        )
    return stream if encoding is None and separator is None else _Recoded(stream, path, encoding, separator)
