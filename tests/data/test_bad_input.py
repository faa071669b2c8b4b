"""Bad files: each is refused with its place and a way out, or its bad lines are left out and counted."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest

from crossrank.data import lines
from crossrank.data.table import open_table
from crossrank.errors import ConfigError, DataError, SchemaError

GOOD = b"a,b,c\n" + b"".join(b"%d,x,y\n" % row for row in range(2, 7))  # each row starts with its line


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def bad_line(line: bytes) -> bytes:
    """The good rows with one more line as line 5."""
    before, after = GOOD[: GOOD.index(b"5,x")], GOOD[GOOD.index(b"5,x") :]
    return before + line + b"\n" + after


BAD_LINES = {
    "a short line": (b"5,x", "too few fields", "line 5 .* must have 3 fields.*; got 2"),
    "a long line": (b"5,x,y,z", "too many fields", "line 5 .* must have 3 fields.*; got 4"),
    "another separator": (b"5;x;y", "too few fields", "line 5 .*; got 1"),
    "blanks": (b"   ", "too few fields", "line 5 .*; got 1"),
    "a NUL": (b"5,x\0,y", "NUL byte", "line 5 .* NUL byte in column 'b'"),
    "bad UTF-8": (b"5,x,\xe4y", "invalid UTF-8", "line 5 .* the byte 0xE4 in column 'c'"),
    "half a character": (b"5,\xe2\x82,y", "invalid UTF-8", "line 5 .* the byte 0xE2 in column 'b'"),
    "a surrogate": (b"5,\xed\xa0\x80,y", "invalid UTF-8", "line 5 .* 'b'"),
    "a lone CR": (b"5,x\rz,y", "lone carriage return", "line 5 .* carriage return in column 'b'"),
    "a CR in quotes": (b'5,"x\rz",y', "lone carriage return", "line 5 .* carriage return in column 'b'"),
    "an open quote": (b'5,"x,y', "unbalanced quote", "line 5 .* never closed"),
    "a quote that goes on": (b'5,"x"z,y', "unbalanced quote", "line 5 .* after its closing quote"),
    "a short line with quotes": (b'5,"x,y"', "too few fields", "line 5 .*; got 2"),
    "a long line with quotes": (b'5,"x",y,"z"', "too many fields", "line 5 .*; got 4"),
}


@pytest.mark.parametrize("rows", [1, 2, 4, 1000])
@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_named_with_its_file_and_line(tmp_path, case, rows):
    line, _, message = BAD_LINES[case]
    table = open_table(write(tmp_path / "bad.csv", bad_line(line)))
    with pytest.raises(DataError, match=f"(?i){message}") as caught:
        list(table.chunks(rows=rows))
    assert "of bad.csv" in caught.value.message
    assert 'on_error="skip"' in caught.value.hint


@pytest.mark.parametrize("rows", [1, 2, 4, 1000])
@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_can_be_left_out_and_is_counted(tmp_path, case, rows):
    line, reason, _ = BAD_LINES[case]
    table = open_table(write(tmp_path / "bad.csv", bad_line(line)), on_error="skip")
    seen = [
        (chunk.frame["a"][row], chunk.where(row))
        for chunk in table.chunks(rows=rows)
        for row in range(len(chunk.frame))
    ]
    assert seen == [(str(n), f"line {n if n < 5 else n + 1} of bad.csv") for n in range(2, 7)]
    assert table.skipped == {reason: 1}
    assert [chunk.first_row for chunk in table.chunks(rows=1)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_found_when_only_another_column_is_read(tmp_path, case):
    with pytest.raises(DataError, match=r"Line 5 of bad\.csv"):
        list(open_table(write(tmp_path / "bad.csv", bad_line(BAD_LINES[case][0]))).chunks(["a"]))


@pytest.mark.parametrize("pair", [b"5,x\n6,x,y,z", b"5,x,y,z\n6,x"])
def test_a_short_and_a_long_line_do_not_make_up_for_each_other(tmp_path, pair):
    with pytest.raises(DataError, match=r"Line 5 of bad\.csv .* got [24]"):
        list(open_table(write(tmp_path / "bad.csv", bad_line(pair))).chunks(["a"]))


def test_every_kind_of_bad_line_is_counted_apart(tmp_path):
    every = b"\n".join(line for line, *_ in BAD_LINES.values() if b'"' not in line)
    table = open_table(write(tmp_path / "bad.csv", bad_line(every)), on_error="skip")
    assert sum(chunk.frame.height for chunk in table.chunks()) == 5
    assert table.skipped == {
        "too few fields": 3,
        "too many fields": 1,
        "NUL byte": 1,
        "invalid UTF-8": 3,
        "lone carriage return": 1,
    }


def test_a_quote_that_is_never_closed_costs_one_line_when_skipping(tmp_path):
    content = b"a,b\n" + b'0,"open\n' + b"".join(b"%d,x\n" % row for row in range(1, 5000))
    table = open_table(write(tmp_path / "bad.csv", content), on_error="skip")
    assert sum(chunk.frame.height for chunk in table.chunks(rows=100)) == 4999
    assert table.skipped == {"unbalanced quote": 1}


@pytest.mark.parametrize(
    ("name", "content", "options", "kind", "message"),
    [
        ("a.csv", b"", {}, DataError, "a.csv must have a line per row; got an empty file"),
        ("a.csv", b"\n\r\n\n", {}, DataError, "got an empty file"),
        ("a.csv", b"\xef\xbb\xbf", {}, DataError, "got an empty file"),
        ("a.csv", b"a,b\n", {}, DataError, "a.csv must have at least one row; got none"),
        ("a.csv", b"a,b", {}, DataError, "a.csv must have at least one row; got none"),
        ("a.csv", b"a,b\n1\n2\n", {"on_error": "skip"}, DataError, "got none; all 2 were left out"),
        ("a.csv", b"a,b,a\n1,2,3\n", {}, SchemaError, "'a' twice.*header="),
        ("a.csv", b"0,1,0\n1,2,3\n", {}, SchemaError, "'0' twice.*header="),
        ("a.csv", b"a,b\n1,2\n", {"header": ["a", "a"]}, SchemaError, "'a' twice"),
        ("a.csv", b"a,b\n1,2\n", {"separator": ";"}, DataError, r"must be cut at ';'.*cut at ','.*separator=','"),
        ("a.tsv", b"a;b;c\n1;2;3\n", {}, DataError, r"cut at '\\t'.*cut at ';'.*separator=';'"),
        ("a.csv", b"1,2\n3,4\n", {"header": ["a", "b", "c"]}, DataError, "Line 1 of a.csv must have 3 fields.*got 2"),
        ("a.csv", b"a,b\n1,\x81\n", {"encoding": "cp1252"}, DataError, "must be cp1252; got the byte 0x81"),
        ("a.csv", b"a,b\n1,2\n", {"encoding": "utf-99"}, ConfigError, "one that Python knows; got 'utf-99'"),
        ("a.csv", b"a,b\n1,2\n", {"encoding": "hex"}, ConfigError, "one that Python knows; got 'hex'"),
        ("a.csv", b"a,\0\n1,2\n", {}, DataError, "Line 1 of a.csv .* NUL"),
        ("a.csv", b"\n\na,\xff\n1,2\n", {}, DataError, "Line 3 of a.csv .* UTF-8"),
        ("a.csv", b'a,"b\n1,2\n', {}, DataError, "Line 1 of a.csv .* never closed"),
        ("a.csv", b"a,b\r1,2\r3,4\r", {}, DataError, "Line 1 of a.csv .* lone carriage return"),
        ("a.parquet", b"a,b\n1,2\n", {}, DataError, "a.parquet must be a whole parquet file"),
        ("a.parquet", b"", {}, DataError, "a.parquet must be a whole parquet file"),
        ("a.csv.gz", b"a,b\n1,2\n", {}, DataError, "a.csv.gz cannot be read: it is not compressed"),
        ("a.csv.gz", gzip.compress(GOOD, mtime=0)[:-12], {}, DataError, "a.csv.gz cannot be read: .*end"),
        ("a.csv.gz", gzip.compress(GOOD, mtime=0)[:-8] + bytes(8), {}, DataError, "a.csv.gz cannot be read: CRC"),
        ("a.csv.gz", gzip.compress(GOOD, mtime=0)[:11] + b"\xff" * 9, {}, DataError, "a.csv.gz cannot be read"),
        ("a.csv.gz", gzip.compress(GOOD, mtime=0) + b"rest", {}, DataError, "a.csv.gz cannot be read"),
        ("a.csv.zst", b"\x28\xb5\x2f\xfd" + b"broken", {}, DataError, "a.csv.zst cannot be read"),
    ],
)
def test_a_bad_file_is_refused_with_its_name(tmp_path, name, content, options, kind, message):
    with pytest.raises(kind, match=f"(?s){message}"):
        list(open_table(write(tmp_path / name, content), **options).chunks())


def test_a_truncated_parquet_file_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pl.DataFrame({"a": range(1000)}).write_parquet(path)
    whole = path.read_bytes()
    for size in (0, 3, 4, 100, len(whole) - 8, len(whole) - 1):
        with pytest.raises(DataError, match=r"a\.parquet must be a whole parquet file"):
            list(open_table(write(path, whole[:size])).chunks())


def test_a_parquet_file_with_fewer_rows_than_it_says_is_refused(tmp_path):
    pl.DataFrame({"a": range(10)}).write_parquet(tmp_path / "a.parquet")
    table = open_table(tmp_path / "a.parquet")
    table.parts[0]._rows = 12
    with pytest.raises(DataError, match="rows 11 to 12 are missing"):
        list(table.chunks(rows=7))


def test_one_endless_line_of_a_zstandard_file_is_refused_within_bounds(tmp_path):
    path = tmp_path / "bomb.csv.zst"
    pl.DataFrame({"a": ["x" * 1000] * 70_000}).write_csv(path, line_terminator=" ", compression="zstd")
    with pytest.raises(DataError, match=r"A line of bomb\.csv\.zst may have 64 MiB; line 1 has more"):
        open_table(path)


def test_a_zstandard_file_must_be_whole_and_utf8(tmp_path):
    path = tmp_path / "a.csv.zst"
    pl.DataFrame({"a": range(1000)}).write_csv(path, compression="zstd")
    write(path, path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"a\.csv\.zst cannot be read"):
        list(open_table(path).chunks())


def test_files_of_a_table_must_agree(tmp_path):
    write(tmp_path / "1.csv", b"a,b\n1,2\n")
    write(tmp_path / "2.csv", b"a,c\n1,2\n")
    with pytest.raises(SchemaError, match=r"1\.csv and 2\.csv differ in 'b', 'c'"):
        open_table(tmp_path)
    pl.DataFrame({"a": [1], "b": [2]}).write_parquet(tmp_path / "2.csv")
    with pytest.raises(DataError, match="all text or all parquet"):
        open_table(tmp_path)


def test_parquet_files_of_different_types_have_no_common_head(tmp_path):
    pl.DataFrame({"a": [1]}, schema={"a": pl.Int32}).write_parquet(tmp_path / "1.parquet")
    pl.DataFrame({"a": [2]}).write_parquet(tmp_path / "2.parquet")
    assert open_table(tmp_path).head()["a"].to_list() == [1, 2]
    pl.DataFrame({"a": [["x"]]}).write_parquet(tmp_path / "2.parquet")
    with pytest.raises(SchemaError, match="columns of the same types"):
        open_table(tmp_path).head()


def test_a_path_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"nothing\.csv cannot be read: No such file.* Check the path"):
        open_table(tmp_path / "nothing.csv")
    with pytest.raises(DataError, match=r"must hold tables .*; got none"):
        open_table(tmp_path)
    write(tmp_path / "notes.md", b"x")
    with pytest.raises(DataError, match=r"must hold tables .*; got 'notes\.md'"):
        open_table(tmp_path)

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(DataError, match=r"notes\.md cannot be read: Permission denied.* Check who may read it"):
        open_table(tmp_path / "notes.md")


def test_a_file_that_fails_while_it_is_read_is_named(tmp_path, monkeypatch):
    table = open_table(write(tmp_path / "a.csv", GOOD))

    class Failing:
        def readinto(self, _: memoryview) -> int:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(lines, "_decompressed", lambda file, path: Failing())
    with pytest.raises(DataError, match=r"a\.csv cannot be read: Input/output error"):
        list(table.chunks())


def test_a_field_of_ten_megabytes_is_read_and_a_longer_line_than_can_be_held_is_refused(tmp_path, monkeypatch):
    large = b"x" * (10 << 20)
    for content in (b"a,b\n1," + large + b"\n2,y\n", b'a,b\n1,"' + large[1:] + b'\n"\n2,y\n'):
        table = open_table(write(tmp_path / "large.csv", content))
        rows = [row for chunk in table.chunks() for row in chunk.frame.rows()]
        assert (len(rows[0][1]), rows[1]) == (10 << 20, ("2", "y"))
    monkeypatch.setattr(lines, "READ_BYTES", 1 << 20)
    monkeypatch.setattr(lines, "HELD_BYTES", 4 << 20)
    with pytest.raises(DataError, match=r"large\.csv.*line 2 has more"):
        list(open_table(write(tmp_path / "large.csv", b"a,b\n1," + large + b"\n")).chunks())
    with pytest.raises(DataError, match=r"Line 2 of large\.csv .* never closed"):
        list(open_table(write(tmp_path / "large.csv", b'a,b\n1,"' + b"x\n" * (5 << 20) + b'"\n')).chunks())


def test_more_columns_than_a_table_may_have_are_refused(tmp_path):
    (tmp_path / "wide.csv").write_text(",".join(f"c{i}" for i in range(100_001)) + "\n")
    with pytest.raises(SchemaError, match=r"A table may have 100,000 columns; wide\.csv has 100,001"):
        open_table(tmp_path / "wide.csv")
