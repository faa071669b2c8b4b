"""Random bytes: a table has the rows that Python's csv module reads, or it is refused."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crossrank.data import lines
from crossrank.data.table import Table, open_table
from crossrank.errors import CrossRankError

TOKENS = [
    b"a",
    b"1",
    b"2.5",
    b" ",
    b",",
    b",",
    b",",
    b"\n",
    b"\n",
    b"\n",
    b"\r\n",
    b"\r",
    b'"',
    b'"',
    b'""',
    b"\t",
    b";",
]
RARE = [b"\0", b"\xff", b"\xef\xbb\xbf", b"x^", "é".encode(), b"\xe2\x82", b"#", b"\\", b"\x1c", "\u2028".encode()]
GOOD_LINES = [b"1,2,3", b'"4",5,"6,7"', b'"a""b",,"c\nd"', b",,", b'"","",""', "é,ü,ß".encode()]
BYTES = st.lists(st.sampled_from([*TOKENS, *TOKENS, *RARE]), max_size=40).map(b"".join)


@st.composite
def damaged_tables(draw: st.DrawFn) -> bytes:
    """A good table with a few random bytes put over or between its own."""
    content = b"a,b,c\n" + b"".join(line + b"\n" for line in draw(st.lists(st.sampled_from(GOOD_LINES), max_size=8)))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(content)))
        content = content[:place] + draw(BYTES)[:3] + content[place + draw(st.integers(0, 2)) :]
    return content


def csv_rows(content: bytes, separator: str) -> list[list[str]]:
    text = content.removeprefix(b"\xef\xbb\xbf").decode()
    return [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True) if row]


def read(path: Path, rows: int) -> tuple[Table | None, list[tuple[str | None, ...]], str]:
    """The table and its rows, or what it was refused with."""
    try:
        table = open_table(path)
        return table, [row for chunk in table.chunks(rows=rows) for row in chunk.frame.rows()], ""
    except CrossRankError as error:
        return None, [], str(error)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.one_of(BYTES, damaged_tables()), rows=st.sampled_from([1, 2, 3]), step=st.sampled_from([1, 5, 1000]))
def test_a_table_has_the_rows_of_the_csv_module_or_is_refused(tmp_path, monkeypatch, content, rows, step):
    path = tmp_path / "fuzz.csv"
    path.write_bytes(content)
    table, found, refusal = read(path, 1000)
    with monkeypatch.context() as patch:
        patch.setattr(lines, "READ_BYTES", step)
        assert read(path, rows)[1:] == (found, refusal)  # whatever the blocks
    if table is not None:
        chunks = list(table.chunks(rows=rows, as_words=table.columns))
        columns = [[text for chunk in chunks for text in chunk.column(name)] for name in table.columns]
        assert list(zip(*columns, strict=True)) == found  # also as words
        header, *expected = csv_rows(content, table.parts[0].separator)
        assert table.columns == tuple(header)
        assert found == [tuple(field or None for field in row) for row in expected]


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=damaged_tables(), rows=st.sampled_from([1, 2, 3]))
def test_rows_that_are_kept_stand_where_they_say(tmp_path, content, rows):
    (tmp_path / "fuzz.csv").write_bytes(content)
    try:
        table = open_table(tmp_path / "fuzz.csv", on_error="skip")
        kept = [pair for chunk in table.chunks() for pair in zip(chunk.numbers, chunk.frame.rows(), strict=True)]
    except CrossRankError:
        return
    skipped, chunks = table.skipped, list(table.chunks(rows=rows))
    assert [pair for chunk in chunks for pair in zip(chunk.numbers, chunk.frame.rows(), strict=True)] == kept
    assert table.skipped == skipped
    lines_of_file = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, row in kept:
        rest = b"\n".join(lines_of_file[number - 1 :]).decode(errors="replace")
        found = next(csv.reader(io.StringIO(rest, newline=""), delimiter=table.parts[0].separator, strict=True))
        assert row == tuple(field or None for field in found)
    if not skipped:
        assert len(kept) == len(csv_rows(content, table.parts[0].separator)) - 1
