"""Tables: the same rows from every kind of source, in the same chunks each time."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from crossrank.data import lines
from crossrank.data.table import open_table
from crossrank.errors import ConfigError, DataError, SchemaError

CSV = "click,country,age\n" + "".join(f"{row % 2},{'' if row % 5 == 0 else f'c{row}'},{row}\n" for row in range(100))
ROWS = [(str(row % 2), None if row % 5 == 0 else f"c{row}", str(row)) for row in range(100)]


def rows_of(source, **options):
    return [row for chunk in open_table(source, **options).chunks(rows=7) for row in chunk.frame.rows()]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_text_is_read_as_strings_and_nothing_as_null(tmp_path):
    table = open_table(write(tmp_path / "a.csv", CSV))
    assert table.columns == ("click", "country", "age")
    assert table.name == "a.csv"
    assert rows_of(table) == ROWS
    assert table.head(3).schema == dict.fromkeys(table.columns, pl.String)
    assert table.head(3).rows() == ROWS[:3]
    assert table.head().rows() == ROWS


@pytest.mark.parametrize("separator", [",", "\t", ";", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("last", [True, False])
def test_separators_line_ends_bom_and_a_missing_last_line_end_make_no_difference(tmp_path, separator, end, bom, last):
    text = bom + CSV.replace(",", separator).replace("\n", end)
    assert rows_of(write(tmp_path / "a.txt", text if last else text.removesuffix(end))) == ROWS


def test_the_suffix_tsv_means_tabs_whatever_else_the_header_holds(tmp_path):
    path = write(tmp_path / "a.tsv", "a,b,c\td\n1\t2\n")
    assert open_table(path).columns == ("a,b,c", "d")


def test_quoted_fields_may_hold_separators_quotes_and_line_ends(tmp_path):
    text = 'a,b,c\n"1,5","say ""hi""",x\n2,"two\nlines",""\n"","",""\n3,4,5\n'
    table = open_table(write(tmp_path / "a.csv", text))
    chunk = next(table.chunks())
    assert chunk.frame.rows() == [("1,5", 'say "hi"', "x"), ("2", "two\nlines", None), (None,) * 3, ("3", "4", "5")]
    assert [chunk.where(row) for row in range(4)] == [f"line {line} of a.csv" for line in (2, 3, 5, 6)]


def test_a_quote_inside_an_unquoted_field_is_text(tmp_path):
    assert rows_of(write(tmp_path / "a.csv", 'a,b\n12" vinyl,1\n7" single,2\n')) == [
        ('12" vinyl', "1"),
        ('7" single', "2"),
    ]


def test_empty_lines_are_no_rows_and_still_counted_as_lines(tmp_path):
    chunk = next(open_table(write(tmp_path / "a.csv", "\n\na,b\n1,2\n\n\r\n3,4\n\n")).chunks())
    assert chunk.frame.rows() == [("1", "2"), ("3", "4")]
    assert [chunk.where(0), chunk.where(1)] == ["line 4 of a.csv", "line 7 of a.csv"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_in_a_table_of_one_column_a_missing_value_is_quoted(tmp_path, end):
    text = end.join(["a", "1", "", "2", '""', ""])
    assert rows_of(write(tmp_path / "a.csv", text)) == [("1",), ("2",), (None,)]
    assert rows_of(write(tmp_path / "a.csv", end.join(["a", "1", "", "2", ""]))) == [("1",), ("2",)]


@pytest.mark.parametrize("start", ["\ufeff", "x^", "x\x01", "#", "\x1f"])
def test_a_chunk_may_start_with_what_looks_like_the_mark_of_a_file(tmp_path, start):
    path = write(tmp_path / "a.csv", f"a,b\n1,2\n{start}3,4\n")
    assert [row for chunk in open_table(path).chunks(rows=1) for row in chunk.frame.rows()] == [
        ("1", "2"),
        (f"{start}3", "4"),
    ]


def test_names_can_be_given_to_a_file_without_header_line(tmp_path):
    path = write(tmp_path / "a.txt", "1\t2\n3\t4\n")
    table = open_table(path, header=["x", "y"])
    assert (table.columns, rows_of(table)) == (("x", "y"), [("1", "2"), ("3", "4")])
    assert next(table.chunks()).where(1) == "line 2 of a.txt"


def test_only_the_requested_columns_come_in_the_requested_order(tmp_path):
    write(tmp_path / "a.csv", CSV)
    open_table(tmp_path / "a.csv").head().write_parquet(tmp_path / "a.parquet")
    for source in (tmp_path / "a.csv", tmp_path / "a.parquet", pl.read_csv(CSV.encode())):
        chunk = next(open_table(source).chunks(["age", "click", "age"]))
        assert chunk.frame.columns == ["age", "click"]
        assert chunk.frame.height == 100


@pytest.mark.parametrize("rows", [1, 3, 99, 100, 1000])
def test_chunks_are_the_same_in_every_pass_and_know_their_place(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(lines, "READ_BYTES", 11)
    path = write(tmp_path / "a.csv", CSV)
    pl.read_csv(path, infer_schema=False).write_parquet(tmp_path / "a.parquet", row_group_size=13)
    for source, where in ((path, "line {} of a.csv"), (tmp_path / "a.parquet", "row {} of a.parquet")):
        table = open_table(source)
        passes = [list(table.chunks(rows=rows)), list(table.chunks(rows=rows))]
        assert [chunk.frame.rows() for chunk in passes[0]] == [chunk.frame.rows() for chunk in passes[1]]
        assert max(chunk.frame.height for chunk in passes[0]) == min(rows, 100)
        shares = [chunk.share_done for chunk in passes[0]]
        assert shares == sorted(shares) and shares[-1] == 1.0
        for chunk in passes[0]:
            assert chunk.frame.rows() == ROWS[chunk.first_row : chunk.first_row + chunk.frame.height]
            number = chunk.first_row + chunk.frame.height + (1 if source == path else 0)
            assert chunk.where(chunk.frame.height - 1) == where.format(number)


def test_compressed_text_is_found_by_its_first_bytes(tmp_path):
    packed = gzip.compress(CSV.encode())
    assert rows_of(write(tmp_path / "a.csv.gz", packed)) == ROWS
    assert rows_of(write(tmp_path / "a.csv", packed)) == ROWS
    assert rows_of(write(tmp_path / "twice.csv.gz", packed + gzip.compress(b"1,x,2\n"))) == [*ROWS, ("1", "x", "2")]


def test_zstandard_text_is_read_like_plain_text(tmp_path):
    frame = pl.DataFrame(ROWS, schema=["click", "country", "age"], orient="row")
    frame.write_csv(tmp_path / "a.tsv.zst", separator="\t", compression="zstd")
    assert rows_of(tmp_path / "a.tsv.zst") == ROWS


def test_a_folder_is_its_files_by_name_without_hidden_ones(tmp_path):
    cut = CSV.index("0,,50\n")
    header = "click,country,age\n"
    write(tmp_path / "part-1.csv", CSV[:cut])
    write(tmp_path / "part-2.csv", header + CSV[cut:])
    write(tmp_path / ".part-0.csv", "nothing")
    write(tmp_path / "_SUCCESS", "")
    write(tmp_path / "README.md", "about")
    for source in (tmp_path, str(tmp_path), [tmp_path / "part-1.csv", tmp_path / "part-2.csv"]):
        table = open_table(source)
        assert table.name == "2 files"
        assert rows_of(table) == ROWS
        chunks = list(table.chunks())
        assert [chunk.first_row for chunk in chunks] == [0, 50]
        assert chunks[1].where(0) == "line 2 of part-2.csv"
        assert [chunk.share_done for chunk in chunks] == [0.5, 1.0]


def test_tables_in_subfolders_are_not_passed_over_in_silence(tmp_path):
    write(tmp_path / "part-1.csv", CSV)
    (tmp_path / "plots").mkdir()
    (tmp_path / ".hidden").mkdir()
    write(tmp_path / ".hidden" / "part-0.csv", CSV)
    assert rows_of(tmp_path) == ROWS
    (tmp_path / "day=2" / "hour=3").mkdir(parents=True)
    write(tmp_path / "day=2" / "hour=3" / "part-2.csv", CSV)
    with pytest.raises(DataError, match="got 1 there, and more in its subfolders 'day=2', which would not be read"):
        open_table(tmp_path)


def test_files_may_have_their_columns_in_different_orders(tmp_path):
    write(tmp_path / "1.csv", "a,b\n1,2\n")
    write(tmp_path / "2.csv", "b,a\n4,3\n")
    assert rows_of(tmp_path) == [("1", "2"), ("3", "4")]


def test_data_frames_and_mappings_keep_their_types():
    frame = pl.DataFrame({"a": [1, 2], "b": [["x"], None]})
    assert open_table(frame).head().equals(frame)
    mixed = open_table({"a": [1, None, 2.5], "b": np.arange(3), 7: ("x", None, "y")})
    assert mixed.head().rows() == [(1.0, 0, "x"), (None, 1, None), (2.5, 2, "y")]
    assert mixed.columns == ("a", "b", "7")
    assert next(mixed.chunks()).where(2) == "row 3 of data frame"


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")
def test_a_pandas_data_frame_gives_null_for_each_of_its_missing_values():
    import pandas as pd

    frame = pd.DataFrame({"i": [1, 2], "s": ["a", None], "n": pd.array([1, None], dtype="Int64")}, index=[7, 8])
    assert open_table(frame).head().rows() == [(1, "a", 1), (2, None, None)]


def test_opening_a_table_gives_the_table_itself():
    table = open_table({"a": [1]})
    assert open_table(table) is table


@pytest.mark.parametrize(
    "source",
    [7, [], None, {"a": [1, "x"]}, {"a": [1], "b": [1, 2]}, {"a": "text"}, {"a": 3}, {"a": [object()]}, {"a": []}, {}],
)
def test_what_is_no_table_is_refused(source):
    with pytest.raises(DataError):
        open_table(source).head()


def test_columns_of_one_name_are_refused():
    with pytest.raises(SchemaError, match="'1' twice"):
        open_table({1: [1], "1": [2]})


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path):
    table = open_table(write(tmp_path / "a.csv", CSV))
    with pytest.raises(SchemaError, match=r"'cuontry' is missing from a.csv; .*'click', 'country'.* mean 'country'\?"):
        next(table.chunks(["click", "cuontry"]))


@pytest.mark.parametrize(
    "options", [{"separator": "a\nb"}, {"separator": '"'}, {"separator": ""}, {"on_error": "ignore"}]
)
def test_an_impossible_option_is_refused(tmp_path, options):
    with pytest.raises(ConfigError):
        open_table(write(tmp_path / "a.csv", CSV), **options)


def test_leaving_a_pass_early_closes_the_file_and_keeps_the_count_of_the_last_full_pass(tmp_path):
    table = open_table(write(tmp_path / "a.csv", CSV + "1,2\n" + CSV[18:]), on_error="skip")
    assert sum(chunk.frame.height for chunk in table.chunks(rows=10)) == 200
    passing = table.chunks(rows=10)
    next(passing)
    passing.close()
    assert table.skipped == {"too few fields": 1}


@pytest.mark.parametrize(
    "content",
    [
        "a,b\n1,2\n3,4\n",
        "a,b\n1,2\n3,4",
        "a,b\r\n1,2\r\n3,4\r\n",
        "a,b\n\n1,2\n\n3,4\n\n",
        'a,b\n"1\n",2\n3,4\n',
        "a,b\n" + "1,2\n" * 3_000_000,
    ],
)
def test_rows_are_counted_as_they_are_read(tmp_path, content):
    (tmp_path / "t.csv").write_text(content, newline="")
    table = open_table(tmp_path / "t.csv")
    assert table.num_rows() == sum(chunk.frame.height for chunk in table.chunks())


def test_packed_text_is_counted_too(tmp_path):
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n3,4\n"))
    assert open_table(tmp_path / "t.csv.gz").num_rows() == 2


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("separator", [";", "tab", "::", "||"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp1252", "utf-16", "utf-16-be"])
def test_encodings_and_separators_make_no_difference(tmp_path, encoding, separator, packed):
    between = "\t" if separator == "tab" else separator
    rows = [["name", "place", "n"], *(["Zoë", f"Köln {'x' * (i % 9)}", str(i)] for i in range(3_000))]
    data = "\n".join(between.join(row) for row in rows).encode(encoding)
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    path.write_bytes(gzip.compress(data) if packed else data)
    table = open_table(path, separator=separator, encoding=encoding)
    assert table.columns == ("name", "place", "n")
    assert table.num_rows() == 3_000
    assert table.head().rows() == [tuple(row) for row in rows[1:]]
    words = next(iter(table.chunks(["n"], as_words=["n"])))
    assert words.column("n").to_list() == [row[2] for row in rows[1:]]


def test_a_separator_is_found_across_blocks_and_utf_16_by_its_mark(tmp_path, monkeypatch):
    monkeypatch.setattr("crossrank.data.lines.READ_BYTES", 7)
    text = "a::b\n" + "".join(f"{'x' * (i % 5)}:::{i}\n" for i in range(50))
    (tmp_path / "a.txt").write_text(text)
    found = open_table(tmp_path / "a.txt", separator="::").head()
    assert found.rows() == [(("x" * (i % 5)) or None, f":{i}") for i in range(50)]
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress("a,b\nä,1\n".encode("utf-16")))
    with pytest.raises(DataError, match=r"got UTF-16\. Say so with encoding="):
        open_table(tmp_path / "c.csv.gz")
    (tmp_path / "b.csv").write_bytes("a,b\nä,1\n".encode("utf-16"))
    marked = open_table(tmp_path / "b.csv")
    assert marked.head().rows() == [("ä", "1")] and marked.num_rows() == 1


def test_text_of_another_encoding_is_refused_with_a_way_out(tmp_path):
    (tmp_path / "a.csv").write_bytes("a,b\nK\u00f6ln,1\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"Line 2 of a\.csv must be UTF-8; got the byte 0xF6") as caught:
        open_table(tmp_path / "a.csv").head()
    assert 'encoding="cp1252"' in caught.value.hint
    pl.DataFrame({"a": ["x"]}).write_csv(tmp_path / "a.csv.zst", compression="zstd")
    with pytest.raises(ConfigError, match=r"Zstandard files must be UTF-8; got encoding 'cp1252' for a\.csv\.zst"):
        open_table(tmp_path / "a.csv.zst", encoding="cp1252")
