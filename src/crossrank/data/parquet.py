"""Parquet files, decoded in a process of their own: some damaged bytes make polars end the process it runs in.

All files share one such process. It starts with the first of them and ends with the process that asked.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TypeVar, cast

from crossrank.data.on_demand import pl
from crossrank.data.parts import Piece
from crossrank.errors import DataError

T = TypeVar("T")
TOLD = re.compile(rb'\0(\[\d+, (?:null|".*")\])\n')
KILLED = -9
KEPT_BYTES = 1 << 26  # the memory of a larger answer is given back at once, that of others is written over


class ParquetFile:
    """One parquet file of a table."""

    unit = "row"

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        names, self._rows = self._decoded(lambda answer, size: json.loads(answer.read(size)))
        self.columns = tuple(names)

    def num_rows(self) -> int | None:
        return int(self._rows)

    def chunks(self, columns: Sequence[str], rows: int, skipped: Counter[str]) -> Iterator[Piece]:
        for start in range(0, self._rows, rows):
            wanted = {"columns": list(columns), "start": start, "rows": rows}
            frame = self._decoded(lambda answer, _: pl.read_ipc_stream(answer), **wanted)
            stop = min(start + rows, self._rows)
            if start + frame.height != stop:
                raise self._error(f"rows {start + frame.height + 1:,} to {stop:,} are missing")
            yield Piece(frame, range(start + 1, stop + 1), stop / self._rows)

    def _decoded(self, unpack: Callable[[IO[bytes], int], T], **wanted: object) -> T:
        try:
            return _ask({"path": str(self.path.absolute()), **wanted}, unpack)
        except _RefusedError as error:
            raise self._error(str(error)) from None
        except _EndedError as error:
            if error.status != KILLED:
                raise self._error(str(error)) from None
            raise DataError(
                f"The memory must suffice to decode {self.path}; the system killed the process that did.",
                hint="Free some memory, or write the file again with smaller row groups.",
            ) from None

    def _error(self, evidence: str) -> DataError:
        hint = "It may be damaged or incomplete: write it again."
        return DataError(f"{self.path} must be a whole parquet file; {evidence.rstrip('.')}.", hint=hint)


class _RefusedError(Exception):
    """The decoder could not read a file, and waits for the next request."""


class _EndedError(Exception):
    """The decoder is gone."""

    def __init__(self, said: bytes, status: int) -> None:
        how = f"signal {-status}" if status < 0 else f"status {status}"
        lines = said.decode(errors="replace").strip().splitlines() or [f"the process that decodes it ended with {how}"]
        super().__init__(lines[0])
        self.status, self.last_line = status, lines[-1]


class _Decoder:
    """A process that runs :mod:`crossrank.data.parquet_decoder`."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", str(Path(__file__).with_name("parquet_decoder.py"))]
        pipe = subprocess.PIPE
        self._open = contextlib.ExitStack()
        try:
            self.answer = self._open.enter_context(_shared_file())
            process = subprocess.Popen(command, stdin=pipe, stdout=self.answer, stderr=pipe, bufsize=0)
            self.process = self._open.enter_context(process)
            self.ask([str(place) for place in sys.path])
        except (OSError, _EndedError) as error:
            self._open.close()
            reason = error.last_line if isinstance(error, _EndedError) else str(error)
            raise DataError(
                f"Parquet is decoded in a process of its own, which must start; {reason}.",
                hint="Where none can be started, use csv.",
            ) from None

    def ask(self, request: object) -> int:
        """Have a request answered, and say how many bytes of the file are the answer.

        Raises:
            _RefusedError: for a parquet file that cannot be read.
            _EndedError: where the process ended instead.
        """
        requests, talk = cast("tuple[IO[bytes], IO[bytes]]", (self.process.stdin, self.process.stderr))
        left = memoryview(json.dumps(request).encode() + b"\n")
        with contextlib.suppress(BrokenPipeError):  # what it said before it ended is still to be heard
            while left:
                left = left[requests.write(left) :]
        said = b""
        while not (told := TOLD.search(said)):
            if not (more := talk.read(1 << 16)):
                raise _EndedError(said, self.process.wait())
            said += more
        size, error = json.loads(told[1])
        if error is not None:
            raise _RefusedError(error)
        self.answer.seek(0)
        return int(size)

    def stop(self) -> None:
        self.process.kill()
        self._open.close()

    def leave(self) -> None:
        """Close this side only: after a fork the process belongs to the parent alone."""
        self.process.returncode = 0  # not ours to wait for
        self._open.close()


def _shared_file() -> IO[bytes]:
    """A file without a name, several times as fast as a pipe; in memory where the system has such."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("crossrank-parquet"), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


_lock = threading.Lock()
_decoder: _Decoder | None = None


def _ask(request: object, unpack: Callable[[IO[bytes], int], T]) -> T:
    global _decoder
    with _lock:
        if _decoder and _decoder.process.poll() is not None:
            _stop()
        _decoder = _decoder or _Decoder()
        try:
            size = _decoder.ask(request)
            unpacked = unpack(_decoder.answer, size)
            if size > KEPT_BYTES:
                _decoder.answer.truncate(0)
            return unpacked
        except _RefusedError:
            raise
        except BaseException:  # its answer, if any, would be taken for that to the next request
            _stop()
            raise


def _stop() -> None:
    global _decoder
    if _decoder:
        _decoder.stop()
    _decoder = None


def _leave() -> None:
    global _lock, _decoder
    if _decoder:
        _decoder.leave()
    _lock, _decoder = threading.Lock(), None


atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave)
