"""Whether the arrays of a dataset are what was written."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from crossrank.data.arrays import array_checksum
from crossrank.errors import DataError
from crossrank.files import stamp

AGAIN = "Copy it anew, or prepare it again."
_verified: set[tuple[Any, ...]] = set()  # files that this process has compared, as a search opens a dataset often


class Verification:
    """Compares arrays with their checksums, each once: when it is first read, or in a thread beside the first epoch.

    Args:
        path: the dataset's folder.
        arrays: its arrays, as they were mapped.
        checksums: what was written of each.
    """

    def __init__(self, path: Path, arrays: Mapping[str, NDArray[Any]], checksums: Mapping[str, str]) -> None:
        self._path, self._arrays, self._checksums = path, arrays, checksums
        self._stamps = {name: (stamp(path / name), checksums[name]) for name in arrays}
        self._thread: threading.Thread | None = None

    @property
    def in_background(self) -> bool:
        return self._thread is not None

    def check(self, names: Iterable[str] | None = None) -> None:
        """Compare some arrays, or all, and wait for the thread if there is one.

        Raises:
            DataError: for the first one that differs.
        """
        if self._thread is not None:
            self._thread.join()
        for name in self._arrays if names is None else names:
            self._compare(name)

    def _compare(self, name: str) -> None:
        if self._stamps[name] in _verified:
            return
        expected = self._checksums[name]
        if array_checksum(self._arrays[name], digits=len(expected)) != expected:
            raise DataError(f"{self._path} is damaged: {name} is not what was written.", hint=AGAIN)
        _verified.add(self._stamps[name])

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Compare all arrays in a thread meanwhile; what fails where one is damaged, fails for that reason."""

        def work() -> None:
            for name in self._arrays:
                with contextlib.suppress(DataError):  # which whoever asks will get
                    self._compare(name)

        thread = threading.Thread(target=work, name="crossrank-verification", daemon=True)
        thread.start()
        self._thread = thread
        try:
            yield
        except Exception as error:
            try:
                self.check()
            except DataError as damage:
                raise damage from error
            raise
        finally:
            self._thread = None
