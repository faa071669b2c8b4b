"""Arrays as true .npy files that are written piece by piece and read through memory maps.

The header has a fixed length, so that the shape can be filled in when the last row is written.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossrank.errors import DataError, ShapeError

HEADER_BYTES = 128


def header(dtype: str, shape: Sequence[int]) -> bytes:
    """The start of a .npy file, format 1.0.

    >>> len(header("<u4", (3, 26)))
    128
    """
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", HEADER_BYTES - 10) + text.ljust(HEADER_BYTES - 11).encode() + b"\n"


class ArrayWriter:
    """Appends rows to a .npy file."""

    def __init__(self, path: Path, dtype: str, row_shape: tuple[int, ...] = ()) -> None:
        self._file = path.open("wb")
        self._dtype, self._row_shape = dtype, row_shape
        self._hash = hashlib.sha256(usedforsecurity=False)  # processors have instructions for it
        self.num_rows = 0
        self._file.write(header(dtype, (0, *row_shape)))

    def append(self, rows: NDArray[np.generic]) -> None:
        """Add rows, which must have the array's type and shape."""
        if rows.dtype != np.dtype(self._dtype) or rows.shape[1:] != self._row_shape:
            raise ShapeError(
                f"Rows of {self._dtype} and shape {self._row_shape} belong here; got {rows.dtype} {rows.shape[1:]}."
            )
        data = _bytes(np.ascontiguousarray(rows))
        self._file.write(data)
        self._hash.update(data)
        self.num_rows += len(rows)

    def finish(self) -> dict[str, Any]:
        """Fix the header, close the file, and describe it for the manifest."""
        shape = (self.num_rows, *self._row_shape)
        self._file.seek(0)
        self._file.write(header(self._dtype, shape))
        self._file.close()
        return {"dtype": self._dtype, "shape": list(shape), "checksum": self._hash.hexdigest()}

    def close(self) -> None:
        self._file.close()


def room_for(path: Path, shape: Sequence[int]) -> NDArray[np.float32]:
    """A new array of numbers over a file, whose room is taken first: on a full disk a map would end the process."""
    with path.open("wb") as file:
        size = int(np.prod(shape, dtype=np.int64)) * 4
        if size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
    return np.memmap(path, np.float32, "r+" if size else "w+", shape=tuple(shape))


def map_array(path: Path, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
    """A read-only array over a file.

    Raises:
        DataError: where the file is missing, or has another type, shape or size.
    """
    expected = HEADER_BYTES + int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    hint = "The dataset is damaged; prepare it again."
    try:
        with path.open("rb") as file:
            start = file.read(HEADER_BYTES)
            size = file.seek(0, 2)
            if size != expected:
                raise DataError(f"{path} must have {expected:,} bytes; got {size:,}.", hint=hint)
            if start != header(dtype, shape):
                raise DataError(f"{path} must hold {dtype} of shape {tuple(shape)}; its header differs.", hint=hint)
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise DataError(f"{path} cannot be read; {error.strerror}.", hint=hint) from None
    return np.frombuffer(data, np.dtype(dtype), offset=HEADER_BYTES).reshape(shape)


def array_checksum(array: NDArray[Any], *, digits: int = 64) -> str:
    """The checksum that :class:`ArrayWriter` computes on the way; one of 32 digits is BLAKE2's, as it was once."""
    if digits == 32:
        return hashlib.blake2b(_bytes(array), digest_size=16).hexdigest()
    return hashlib.sha256(_bytes(array), usedforsecurity=False).hexdigest()


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
