"""Texts as words, their numbering, and the columns of a table that come as words."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossrank.data.packed_texts import FIRST_CODE, MISSING_CODE, TextCodes, WordCodes, texts_of_words
from crossrank.data.parallel import for_each
from crossrank.data.table import open_table
from crossrank.data.text import stable_hash, stable_hashes_of_words

LETTERS = st.sampled_from(["a", "b", "é", "\0", "7", "\u2028", "𝒳"])
TEXTS = st.none() | st.text(LETTERS, max_size=4) | st.sampled_from(["x" * 8, "x" * 9, "x" * 20, "x" * 7 + "\0"])
COLUMNS = st.lists(st.lists(TEXTS, max_size=12), min_size=1, max_size=4)


def coded(codes: TextCodes, texts: list[str | None]) -> np.ndarray:
    return codes.code(codes.words_of(pl.Series(texts, dtype=pl.String)))


@settings(deadline=None, max_examples=150)
@given(COLUMNS)
def test_equal_texts_have_equal_codes_and_codes_lead_back_to_their_texts(chunks):
    codes, known = TextCodes(), {None: MISSING_CODE, "": MISSING_CODE}
    for texts in chunks:
        for text, code in zip(texts, coded(codes, texts).tolist(), strict=True):
            assert known.setdefault(text, code) == code
    texts = [text for text in known if text]
    assert sorted(known[text] for text in texts) == list(range(FIRST_CODE, codes.size))
    of_texts = np.array([known[text] for text in texts], np.uint32)
    assert codes.texts(of_texts).to_list() == texts
    letters, ends = codes.letters(of_texts)
    assert letters.tobytes() == "".join(texts).encode()
    assert np.array_equal(ends, np.cumsum([len(text.encode()) for text in texts], dtype=np.int64))
    order = codes.keys(of_texts).arg_sort().to_list()
    assert [texts[place] for place in order] == sorted(texts, key=str.encode)


@pytest.mark.parametrize("spread", [1, 1 << 40, 0x9E37_79B9])
def test_many_words_are_numbered_like_in_a_dictionary_however_their_bits_lie(spread):
    rng = np.random.default_rng(3)
    codes, known = WordCodes(), {}
    for _ in range(5):
        words = rng.integers(1, 9000, 7000).astype(np.uint64) * np.uint64(spread)
        words[::7] = 0
        found = codes.code(words)
        for word, code in zip(words.tolist(), found.tolist(), strict=True):
            assert known.setdefault(word, code) == code
    assert known.pop(0) == MISSING_CODE
    assert sorted(known.values()) == list(range(FIRST_CODE, codes.size))
    assert codes.words[[*known.values()]].tolist() == [*known]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(st.sampled_from("abé9"), max_size=4), max_size=9))
def test_the_stable_hash_of_a_short_text_can_be_taken_from_its_word(texts):
    words = TextCodes().words_of(pl.Series(texts, dtype=pl.String))
    assert stable_hashes_of_words(words).tolist() == [stable_hash(text) for text in texts]
    assert texts_of_words(words).to_list() == [text or None for text in texts]


@pytest.mark.parametrize(
    ("lines", "as_words"),
    [
        (["1\tab\tx", "\t12345678\t", "\t\t"], {"a", "b", "c"}),
        (["1\tab\tx", "\t123456789\ty"], {"a", "c"}),  # too long for a word
        (["1\tab\tx", '2\t"b"\ty'], set()),
        (["1\tab\tx", "2\tü\ty"], set()),
        (["1\tab\tx\r", "2\tb\ty\r"], set()),
        (["1\tab\tx", "", "2\tb\ty"], set()),
    ],
)
def test_columns_come_as_words_where_lines_are_plain_and_texts_short(tmp_path, lines, as_words):
    (tmp_path / "t.tsv").write_text("\n".join(["a\tb\tc", *lines]) + "\n", newline="")
    table = open_table(tmp_path / "t.tsv")
    (plain,), (chunk,) = table.chunks(), table.chunks(as_words=["c", "a", "b"])
    assert set(chunk.words) == as_words and set(chunk.frame.columns) == {"a", "b", "c"} - as_words
    assert chunk.frame.height == plain.frame.height
    for name in table.columns:
        assert chunk.column(name).to_list() == plain.frame[name].to_list()


def test_many_lines_are_cut_alike_whatever_the_chunks(tmp_path):
    rows = [(str(row), f"v{row % 977}" if row % 5 else "") for row in range(20_000)]
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{a},{b}\n" for a, b in rows))
    for size in (4095, 4096, 4097, 20_000):
        chunks = list(open_table(tmp_path / "t.csv").chunks(rows=size, as_words=["a", "b"]))
        assert all(len(chunk.words) == 2 for chunk in chunks)
        found = [pair for chunk in chunks for pair in zip(chunk.column("a"), chunk.column("b"), strict=True)]
        assert found == [(a, b or None) for a, b in rows]
        assert chunks[-1].where(chunks[-1].frame.height - 1) == "line 20,001 of t.csv"


@pytest.mark.parametrize(("num_rows", "stages"), [(1, 1), (1 << 20, 1), (1 << 20, 2)])
def test_of_several_errors_the_first_is_raised(num_rows, stages):
    def work(item: int) -> int:
        if item > 6:
            raise ValueError(item)
        return -item

    assert for_each(range(7), work, num_rows=num_rows, stages=stages) == [-item for item in range(7)]
    with pytest.raises(ValueError, match="7"):
        for_each(range(50), work, num_rows=num_rows, stages=stages)
