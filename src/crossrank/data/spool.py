"""Chunks on disk between the two passes of prepare."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from crossrank.data.fitting import CodedRows
from crossrank.data.rows import Floats, Ids
from crossrank.schema import Schema


@dataclasses.dataclass(frozen=True)
class SpooledChunk:
    """A chunk whose features are coded, but not yet encoded, and each row's split, label, weight and group."""

    coded: CodedRows
    parts: NDArray[np.uint8]
    labels: Floats
    weights: Floats | None
    groups: Ids | None


class Spool:
    """Writes chunks, one file each, and gives them back once, in order, deleting them on the way."""

    def __init__(self, folder: Path, schema: Schema) -> None:
        self._folder, self._schema = folder, schema
        self._count = 0

    def write(self, chunk: SpooledChunk) -> None:
        self._folder.mkdir(exist_ok=True)
        coded = chunk.coded
        bags = chain.from_iterable(coded.bags)
        arrays = [chunk.parts, chunk.labels, *coded.codes, *bags, *coded.numbers, chunk.weights, chunk.groups]
        with self._path(self._count).open("wb") as file:
            for array in arrays:
                if array is not None:
                    np.save(file, array, allow_pickle=False)
        self._count += 1

    def read(self) -> Iterator[tuple[SpooledChunk, float]]:
        """Each chunk, and the share of all chunks that is read."""
        for number in range(self._count):
            with self._path(number).open("rb") as file:
                chunk = self._load(file)
            self._path(number).unlink()
            yield chunk, (number + 1) / self._count
        self._folder.rmdir()

    def _load(self, file: IO[bytes]) -> SpooledChunk:
        def load() -> Any:
            return np.load(file, allow_pickle=False)

        schema, parts, labels = self._schema, load(), load()
        codes = [load() for _ in schema.categorical]
        bags = [(load(), load()) for _ in schema.multivalent]
        coded = CodedRows(len(parts), codes, bags, [load() for _ in schema.numeric])
        return SpooledChunk(coded, parts, labels, load() if schema.weight else None, load() if schema.group else None)

    def _path(self, number: int) -> Path:
        return self._folder / str(number)
