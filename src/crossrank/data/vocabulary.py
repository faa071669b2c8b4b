"""The ids of one column's values.

Id 0 stands for a missing value and 1 for one that training did not keep. A kept vocabulary follows, the most frequent
value first and equally frequent ones in the order of their text. In a hashed column the id is
``2 + stable_hash(text) % hash_size``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossrank.data.on_demand import pl
from crossrank.data.packed_texts import Words
from crossrank.data.rows import Ids
from crossrank.data.text import stable_hash, stable_hashes, stable_hashes_of_words

MISSING_ID, UNSEEN_ID = 0, 1
FIRST_ID = 2
UNSEEN_TEXT = "<unseen>"


class _Ids(dict[str | None, int]):
    """The ids of texts; that of a text that is not there is the unseen one."""

    def __missing__(self, text: str | None) -> int:
        return UNSEEN_ID


class Vocabulary:
    """A kept vocabulary.

    Args:
        letters: the values' texts in UTF-8, one after the other, in the order of their ids.
        ends: where each text ends.
        counts: training occurrences by id, the two special ids included.
    """

    def __init__(self, letters: NDArray[np.uint8], ends: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        self.letters, self.ends, self.counts = letters, ends, counts

    @property
    def size(self) -> int:
        return len(self.counts)

    @cached_property
    def texts(self) -> list[str]:
        data, ends = self.letters.tobytes(), [0, *self.ends.tolist()]
        return [data[start:end].decode("utf-8") for start, end in pairwise(ends)]

    @cached_property
    def id_of(self) -> Callable[[str | None], int]:
        """The id of a text; nothing and "" are missing. That of a dictionary itself, with no function around it."""
        known = _Ids({None: MISSING_ID, "": MISSING_ID})
        known.update(zip(self.texts, range(FIRST_ID, self.size), strict=True))
        return known.__getitem__

    def text_of(self, id_: int) -> str:
        return self.texts[id_ - FIRST_ID]

    def ids(self, texts: pl.Series) -> Ids:
        """The ids of a column of texts."""
        return texts.to_frame("texts").select(self._query).to_series().to_numpy(writable=True)

    @cached_property
    def _query(self) -> pl.Expr:
        """Made once, because polars builds its dictionary with the query and forgets it with the query."""
        texts = pl.col("texts")
        known = texts.cast(pl.Enum(self.texts), strict=False).to_physical().cast(pl.UInt32) + FIRST_ID
        return known.fill_null(pl.when(texts.is_null()).then(pl.lit(MISSING_ID, pl.UInt32)).otherwise(UNSEEN_ID))

    def tensors(self) -> dict[str, NDArray[np.generic]]:
        return {"letters": self.letters, "ends": self.ends, "counts": self.counts}


class HashedVocabulary:
    """A column whose values are hashed into ``hash_size`` ids; which value had which id is not kept."""

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self.counts = counts
        self.hash_size = len(counts) - FIRST_ID

    @property
    def size(self) -> int:
        return len(self.counts)

    def id_of(self, text: str | None) -> int:
        return FIRST_ID + stable_hash(text) % self.hash_size if text else MISSING_ID

    def text_of(self, id_: int) -> str:
        return f"<hash {id_ - FIRST_ID}>"

    def ids(self, texts: pl.Series) -> Ids:
        return hashed_ids(texts, self.hash_size)

    @property
    def expected_collisions(self) -> float:
        """The share of distinct training values that are expected to share their id with another.

        With n values in H ids it is ``1 - (1 - 1/H)^(n - 1)``. n is estimated from the ids that occur, because the
        values are not kept: ``n = -H log(1 - occupied / H)``.
        """
        size, occupied = self.hash_size, int(np.count_nonzero(self.counts[FIRST_ID:]))
        if not occupied:
            return 0.0
        distinct = -size * math.log1p(-min(occupied, size - 0.5) / size)
        return 1.0 if size == 1 else -math.expm1(max(distinct - 1, 0.0) * math.log1p(-1 / size))

    def tensors(self) -> dict[str, NDArray[np.generic]]:
        return {"counts": self.counts}


def hashed_ids(texts: pl.Series | Words, hash_size: int) -> Ids:
    """The ids of texts, given as such or as the words of short ones."""
    if isinstance(texts, np.ndarray):
        hashes, missing = stable_hashes_of_words(texts), texts == 0
    else:
        hashes, missing = stable_hashes(texts), texts.is_null().to_numpy()
    ids = (hashes % np.uint64(hash_size)).astype(np.uint32) + np.uint32(FIRST_ID)
    return np.where(missing, np.uint32(MISSING_ID), ids)


AnyVocabulary = Vocabulary | HashedVocabulary


def from_tensors(tensors: Mapping[str, NDArray[np.generic]]) -> AnyVocabulary:
    """The inverse of ``tensors()``."""
    counts = _whole_numbers(tensors["counts"])
    if len(counts) <= FIRST_ID - ("ends" in tensors) or counts.min() < 0:
        raise ValueError("each id must have a count")
    if "ends" not in tensors:
        return HashedVocabulary(counts)
    letters, ends = _whole_numbers(tensors["letters"], np.uint8), _whole_numbers(tensors["ends"])
    starts = np.concatenate([[0], ends])
    if len(starts) + 1 != len(counts):
        raise ValueError("each value must have a text and a count")
    if starts[-1] != len(letters) or (np.diff(starts) < 0).any():
        raise ValueError("texts must follow each other")
    letters.tobytes().decode()
    if (letters[ends[ends < len(letters)]] & 0xC0 == 0x80).any():
        raise ValueError("texts must be whole characters")
    return Vocabulary(letters, ends, counts)


def _whole_numbers(array: NDArray[Any], dtype: type[Any] = np.int64) -> NDArray[Any]:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"whole numbers in a row belong here; got {array.dtype} of shape {array.shape}")
    return array.astype(dtype, copy=False)
