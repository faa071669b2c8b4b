"""Chunks on disk between the two passes of prepare."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossrank.data.encoder_builder import CodedRows
from crossrank.data.rows import Floats, Ids
from crossrank.schema import Schema


@dataclasses.dataclass(frozen=True)
class SpooledChunk:
    """A chunk whose features are coded, but not yet encoded, and each row's split, label, weight, group and time."""

    coded: CodedRows
    splits: NDArray[np.uint8]
    labels: Floats
    weights: Floats | None
    groups: Ids | None
    times: Ids | None = None


class Spool:
    """Writes chunks, one file each, and gives them back once, in order, deleting them on the way."""

    def __init__(self, folder: Path, schema: Schema) -> None:
        self._folder, self._schema = folder, schema
        self._kinds: list[list[tuple[np.dtype[Any], int]]] = []  # type and size of each array of each chunk

    def write(self, chunk: SpooledChunk) -> None:
        self._folder.mkdir(exist_ok=True)
        coded = chunk.coded
        bags = chain.from_iterable(coded.bags)
        every: list[Any] = [chunk.splits, chunk.labels, *coded.codes, *bags, *coded.numbers]
        every += [chunk.weights, chunk.groups, chunk.times]
        arrays = [array for array in every if array is not None]
        with self._path(len(self._kinds)).open("wb") as file:
            for array in arrays:
                file.write(array.data)
        self._kinds.append([(array.dtype, array.size) for array in arrays])

    def read(self) -> Iterator[tuple[SpooledChunk, float]]:
        """Each chunk, and the share of all chunks that is read."""
        for number, kinds in enumerate(self._kinds):
            with self._path(number).open("rb") as file:
                chunk = self._chunk(iter([np.fromfile(file, kind, size) for kind, size in kinds]))
            self._path(number).unlink()
            yield chunk, (number + 1) / len(self._kinds)
        self._folder.rmdir()

    def _chunk(self, arrays: Iterator[Any]) -> SpooledChunk:
        schema, splits, labels = self._schema, next(arrays), next(arrays)
        codes = [next(arrays) for _ in schema.categorical]
        bags = [(next(arrays), next(arrays)) for _ in schema.multivalent]
        coded = CodedRows(len(splits), codes, bags, [next(arrays) for _ in schema.numeric])
        weights = next(arrays) if schema.weight else None
        groups = next(arrays) if schema.group else None
        labels = labels.reshape(len(splits), -1) if schema.label.kind == "tasks" else labels
        return SpooledChunk(coded, splits, labels, weights, groups, next(arrays, None))

    def _path(self, number: int) -> Path:
        return self._folder / str(number)
