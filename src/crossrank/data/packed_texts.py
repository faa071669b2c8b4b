"""Texts packed into words of 64 bits, and the numbering of the distinct ones while a table is read.

| text | word |
| --- | --- |
| up to eight bytes, none of them NUL | the bytes, the first one lowest, filled up with zeros; of nothing 0 |
| any other | its number among such texts of the column, with a zero as first byte |

So two texts of a column are equal where their words are, and most texts are looked up by numpy alone, a chunk at once.
"""

from __future__ import annotations

import threading
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crossrank.data.on_demand import pl
from crossrank.data.rows import Ids

Bytes: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint64]
Places: TypeAlias = NDArray[np.int64]
Codes: TypeAlias = NDArray[np.unsignedinteger[Any]]

WORD_BYTES = 8
NO_TEXT = np.uint64(0xFF << 56)  # the word of no text at all: it starts with a zero, and no column has so many texts
MISSING_CODE, UNKNOWN_CODE = 0, 1
FIRST_CODE = 2
SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: neighbours go far apart
SLOTS_FOR_A_WORD = 8  # at least; fewer cost longer searches, each step of which is a dozen calls of numpy
PAD = b" " * WORD_BYTES  # before texts, so that a word can be read up to every place in them
_memory = threading.local()


def words_in(padded: bytes, stops: Places, sizes: Places) -> Words:
    """The words of texts of up to eight bytes, given where behind the pad each stops, and its size."""
    up_to_each_place = np.ndarray(len(padded) - WORD_BYTES + 1, "<u8", padded, strides=(1,))  # overlapping
    short = 16 * len(stops) > len(padded)  # then it is worth it to have every word at its own place first
    found = _plain(up_to_each_place).take(stops, mode="clip") if short else up_to_each_place[stops]
    words: Words = found.astype(np.uint64, copy=False)
    before = (WORD_BYTES - sizes).view(np.uint64)
    before <<= np.uint64(3)  # bits of what comes before the text
    words >>= before
    return words


def _plain(words: Words) -> Words:
    """Words that overlap, side by side, where the thread's next ones will lie too.

    Numpy would make this copy by itself, in memory that is asked for and given back each time.
    """
    if len(getattr(_memory, "words", ())) < len(words):
        _memory.words = np.empty(len(words), words.dtype)
    plain: Words = _memory.words[: len(words)]
    plain[:] = words
    return plain


def letters_of(texts: pl.Series) -> bytes:
    """The UTF-8 bytes of texts, one after the other."""
    return (texts.str.join("").item() if len(texts) else "").encode()


def texts_of_words(words: Words) -> pl.Series:
    """The texts of words that are texts themselves; null for 0."""
    texts = pl.Series(words.astype("<u8", copy=False).view("S8")).cast(pl.String)
    empty = words == 0
    return texts.set(pl.Series(empty), None) if empty.any() else texts


def distinct_words(words: Words) -> Words:
    """Each word once, in order, as ``np.unique`` gives them more slowly."""
    ordered = np.sort(words)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(words) else ordered


class WordCodes:
    """Numbers distinct words from 2 on; 0 is the code of the word 0.

    A table with open addressing: a word's code stands in the slot its hash points at, or in one of the next. A slot
    holds a code alone, the word is found by the code.

    Cost: 8 bytes for each word and 4 for each slot, of which 1/16 to 1/8 are in use.
    """

    def __init__(self) -> None:
        self._words = np.array([0, NO_TEXT], np.uint64)  # by code, with room to grow
        self.size = FIRST_CODE
        self._counts = np.zeros(FIRST_CODE, np.int64)  # likewise
        self._make_slots(10)

    @property
    def words(self) -> Words:
        """The words by their codes."""
        return self._words[: self.size]

    @property
    def counts(self) -> Places:
        """How often each code was counted."""
        self._make_counts()
        return self._counts[: self.size]

    def count(self, codes: Ids, times: Places | int = 1) -> None:
        """Count codes that were seen so many times each."""
        self._make_counts()
        np.add.at(self._counts, codes, times)

    def _make_counts(self) -> None:
        if len(self._counts) < self.size:
            more = self.size + self.size // 2 - len(self._counts)
            self._counts = np.append(self._counts, np.zeros(more, np.int64))

    def code(self, words: Words) -> Ids:
        """The code of each word; words that are new get the next ones."""
        if self.size == FIRST_CODE:  # let the frequent ones be known before thousands of each are looked up
            self._find_or_add(words[:4096], self._home(words[:4096]))
        slots = self._home(words)
        codes: Ids = self._slots.take(slots, mode="clip")
        elsewhere = np.flatnonzero(self._words.take(codes, mode="clip") != words)
        if len(elsewhere):
            codes[elsewhere] = self._find_or_add(words[elsewhere], slots[elsewhere])
        return codes

    def _find_or_add(self, words: Words, slots: Places) -> Ids:
        codes, rows = np.empty(len(words), np.uint32), np.arange(len(words))
        while len(rows):
            found = self._slots[slots]
            free = np.flatnonzero(found == UNKNOWN_CODE)
            if len(free):
                found[free] = self._claim(slots[free], words[free])
            codes[rows] = found
            on = np.flatnonzero(self._words[found] != words)  # another word's slot
            rows, words, slots = rows[on], words[on], (slots[on] + 1) & self._last_slot
            if SLOTS_FOR_A_WORD * self.size > len(self._slots):
                self._make_slots((SLOTS_FOR_A_WORD * self.size).bit_length())
                slots = self._home(words)
        return codes

    def _claim(self, slots: Places, words: Words) -> Ids:
        """Give each of the free slots to one of the words that want it, with a new code; the codes they hold then."""
        numbers = np.arange(len(slots), dtype=np.uint32)
        self._slots[slots] = numbers  # the last of those that want a slot stays
        won = np.flatnonzero(self._slots[slots] == numbers)
        first, self.size = self.size, self.size + len(won)
        if self.size > len(self._words):
            self._words = np.concatenate([self._words[:first], np.empty(self.size // 2 + len(won), np.uint64)])
        self._words[first : self.size] = words[won]
        self._slots[slots[won]] = np.arange(first, self.size, dtype=np.uint32)
        return self._slots[slots]

    def _make_slots(self, bits: int) -> None:
        self._shift, self._last_slot = np.uint64(64 - bits), (1 << bits) - 1
        self._slots = np.full(1 << bits, UNKNOWN_CODE, np.uint32)
        self._slots[0] = MISSING_CODE  # the hash of 0 is 0: what is missing is found at once
        codes = np.arange(FIRST_CODE, self.size, dtype=np.uint32)
        slots = self._home(self._words[codes])
        while len(codes):
            free = self._slots[slots] == UNKNOWN_CODE
            self._slots[slots[free][::-1]] = codes[free][::-1]  # of several the first, often the most frequent
            on = self._slots[slots] != codes
            codes, slots = codes[on], (slots[on] + 1) & self._last_slot

    def _home(self, words: Words) -> Places:
        return ((words * SPREAD) >> self._shift).view(np.int64)


class TextCodes(WordCodes):
    """Numbers the distinct texts of a column, given as words or as texts."""

    def __init__(self) -> None:
        super().__init__()
        self._type = pl.Categorical(pl.Categories.random())
        self._alive = pl.Series([""], dtype=self._type)  # polars forgets a dictionary that nothing uses any more

    def words_of(self, texts: pl.Series) -> Words:
        """The words of texts; null counts as nothing."""
        sizes = texts.str.len_bytes().fill_null(0).to_numpy().astype(np.int64)
        other = (sizes > WORD_BYTES) | texts.str.contains("\0", literal=True).fill_null(False).to_numpy()
        long = texts.filter(other)
        if len(long):
            texts = texts.set(pl.Series(other), None)
            sizes[other] = 0
        words = words_in(PAD + letters_of(texts), np.cumsum(sizes), sizes)
        words[other] = long.cast(self._type).to_physical().to_numpy().astype(np.uint64) << np.uint64(8)
        return words

    def texts(self, codes: Ids) -> pl.Series:
        """The texts that have these codes."""
        words = self._words[codes]
        other = _starts_with_zero(words)
        numbers = np.where(other, words >> np.uint64(8), 0).astype(np.uint32)
        long = pl.Series(numbers).cat.to(self._type).cast(pl.String)
        return texts_of_words(np.where(other, 0, words)).zip_with(pl.Series(~other), long)

    def values(self) -> pl.Series | Words:
        """All texts in the order of their codes, as words where all are short."""
        words = self.words[FIRST_CODE:]
        codes = np.arange(FIRST_CODE, self.size, dtype=np.uint32)
        return self.texts(codes) if _starts_with_zero(words).any() else words

    def keys(self, codes: Ids) -> pl.Series:
        """What has the order of the texts that have these codes."""
        words = self._words[codes]
        return self.texts(codes) if _starts_with_zero(words).any() else pl.Series(words.byteswap())

    def letters(self, codes: Ids) -> tuple[Bytes, Places]:
        """The texts that have these codes in UTF-8, one after the other, and where each ends."""
        words = self._words[codes]
        if _starts_with_zero(words).any():
            texts = self.texts(codes)
            letters = np.frombuffer(letters_of(texts), np.uint8)
            return letters, np.cumsum(texts.str.len_bytes().to_numpy(), dtype=np.int64)
        letters = words.astype("<u8", copy=False).view(np.uint8)
        return letters[letters != 0], np.cumsum(sizes_of_words(words), dtype=np.int64)


def sizes_of_words(words: Words) -> Places:
    """The bytes of texts that are their own words."""
    sizes: Places = np.count_nonzero(words.view(np.uint8).reshape(-1, WORD_BYTES), axis=1)  # (N, 8) -> (N,)
    return sizes


def _starts_with_zero(words: Words) -> NDArray[np.bool_]:
    zero: NDArray[np.bool_] = words & np.uint64(0xFF) == 0
    return zero


def smallest(codes: Ids) -> Codes:
    """The same codes in as few bytes as they need: on disk they cost as much as the dataset itself."""
    return codes.astype(np.min_scalar_type(codes.max(initial=0)), copy=False)
