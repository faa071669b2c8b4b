from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import multiprocessing
import os
import select
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from crossrank.data import open_table, parquet, parquet_decoder
from crossrank.data.parquet import ParquetFile
from crossrank.errors import DataError

ROWS = 500
OUT_OF_MEMORY = "memory allocation of 2305843009213693952 bytes failed"


def numbers(path: Path, first: int = 0) -> Path:
    pl.DataFrame({"n": range(first, first + ROWS)}).write_parquet(path)
    return path


def read(path: Path, rows: int = 65_536) -> list[int]:
    return [number for chunk in open_table(path).chunks(rows=rows) for number in chunk.frame["n"]]


def fatal(path: Path) -> Path:
    """A file with one wrong byte, for which polars ends the process: a page with a negative number of values."""
    pl.DataFrame({"b": [None, "x"] * 8}).write_parquet(path, compression="uncompressed")
    page_header = b"\x2c\x15\x20"  # a structure whose first field is the number of values: 16, as a zigzag varint
    content = path.read_bytes()
    assert content.count(page_header) == 1
    path.write_bytes(content.replace(page_header, b"\x2c\x15\x21"))
    code = "import sys, polars; polars.read_parquet(sys.argv[1])"
    alone = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    if alone.returncode != -signal.SIGABRT or OUT_OF_MEMORY not in alone.stderr:
        pytest.skip(f"polars {pl.__version__} no longer aborts at this file")
    return path


def decoder() -> subprocess.Popen[bytes]:
    """The process that decodes, once there was something to decode."""
    assert parquet._decoder
    return parquet._decoder.process


def test_every_type_comes_as_polars_itself_reads_it(tmp_path):
    day, moment = dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 12, 30, 1, 5)
    columns = {
        "category": pl.Series([None, "b", "a", "b"], dtype=pl.Categorical),
        "enum": pl.Series(["y", "x", None, "y"], dtype=pl.Enum(["x", "y"])),
        "decimal": pl.Series([decimal.Decimal("1.25"), None, decimal.Decimal("-7"), None], dtype=pl.Decimal(30, 2)),
        "date": [day, None, day, day],
        "moment": pl.Series([moment, None] * 2, dtype=pl.Datetime("us", "Europe/Berlin")),
        "nanoseconds": pl.Series([moment, None] * 2, dtype=pl.Datetime("ns")),
        "duration": pl.Series([dt.timedelta(seconds=3), None] * 2, dtype=pl.Duration("ms")),
        "time": [dt.time(1, 2, 3), None] * 2,
        "list": [[1, None], [], None, [2]],
        "texts": [["a", "b" * 40], [], None, [None]],
        "array": pl.Series([[1, 2], None, [3, 4], [5, 6]], dtype=pl.Array(pl.Int16, 2)),
        "struct": [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 2, "b": None}],
        "binary": [b"\0\xff", None, b"", b"x"],
        "bool": [True, None, False, True],
        "byte": pl.Series([1, None, 255, 0], dtype=pl.UInt8),
        "float": pl.Series([1.5, float("nan"), None, float("-inf")], dtype=pl.Float32),
        "text": ["", None, "long text " * 9, "é"],
        "null": pl.Series([None] * 4, dtype=pl.Null),
    }
    path = tmp_path / "a.parquet"
    pl.DataFrame(columns).write_parquet(path, row_group_size=2)
    expected = pl.read_parquet(path)
    for rows in (1, 3, 100):
        frames = [chunk.frame for chunk in open_table(path).chunks(rows=rows)]  # all kept until the last is read
        assert [frame.schema for frame in frames] == [expected.schema] * len(frames)
        assert_frame_equal(pl.concat(frames), expected, categorical_as_str=True)
    some = [chunk.frame for chunk in open_table(path).chunks(["text", "bool"])]
    assert_frame_equal(some[0], expected.select("text", "bool"))
    assert open_table(path).num_rows() == 4


def test_a_file_that_makes_polars_abort_is_refused_and_the_next_is_read(tmp_path):
    good, bad = numbers(tmp_path / "good.parquet"), fatal(tmp_path / "bad.parquet")
    table = open_table(bad)
    assert table.num_rows() == 16
    for _ in range(2):
        with pytest.raises(DataError) as caught:
            list(table.chunks())
        assert caught.value.message == f"{bad} must be a whole parquet file; {OUT_OF_MEMORY}."
        assert read(good) == list(range(ROWS))


def test_threads_that_read_different_files_each_get_their_own_rows(tmp_path):
    paths = [numbers(tmp_path / f"{number}.parquet", first=number * ROWS) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda path: read(path, rows=7), paths))
    assert found == [list(range(number * ROWS, (number + 1) * ROWS)) for number in range(4)]


def test_a_table_that_is_left_half_way_is_read_whole_the_next_time(tmp_path):
    path = numbers(tmp_path / "a.parquet")
    for chunks in (open_table(path).chunks(rows=10), ParquetFile(path).chunks(["n"], 10, None)):
        next(chunks)
        next(chunks)
        chunks.close()
        assert read(path, rows=10) == list(range(ROWS))


def test_an_answer_that_nobody_took_is_not_taken_for_the_next(tmp_path, monkeypatch):
    path = numbers(tmp_path / "a.parquet")

    class Interrupted:
        def search(self, _: bytes) -> None:
            raise KeyboardInterrupt  # the request is sent, the answer not yet read

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(parquet, "TOLD", Interrupted())
        open_table(path)
    assert read(path) == list(range(ROWS))


def test_a_relative_path_means_the_folder_of_this_process(tmp_path, monkeypatch):
    for name, first in (("one", 0), ("two", ROWS)):
        (tmp_path / name).mkdir()
        numbers(tmp_path / name / "a.parquet", first)
        monkeypatch.chdir(tmp_path / name)
        assert read(Path("a.parquet"))[0] == first


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_a_decoder_of_its_own(tmp_path):
    path = numbers(tmp_path / "a.parquet")
    assert read(path) == list(range(ROWS))
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe()

    def work() -> None:
        rows = parquet._ask({"path": str(path)}, lambda answer, size: answer.read(size))  # polars itself cannot fork
        sender.send((rows, decoder().pid))

    parquet._lock.acquire()  # as if another thread were asking just now
    forked = context.Process(target=work)
    forked.start()
    parquet._lock.release()
    assert receiver.poll(20)
    rows, pid = receiver.recv()
    forked.join(20)
    assert (rows, forked.exitcode) == (b'[["n"], 500]', 0)
    assert pid != decoder().pid and decoder().poll() is None
    assert read(path) == list(range(ROWS))


def test_a_decoder_that_ended_between_two_requests_is_not_missed(tmp_path):
    table = open_table(numbers(tmp_path / "a.parquet"))
    chunks = table.parts[0].chunks(["n"], 100, None)
    next(chunks)
    decoder().kill()
    decoder().wait()
    assert sum(chunk.frame.height for chunk in chunks) == ROWS - 100


@pytest.mark.skipif(os.name == "nt", reason="no such signals here")
@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGKILL, "The memory must suffice to decode .*; the system killed the process that did. Free"),
        (signal.SIGSEGV, "must be a whole parquet file; the process that decodes it ended with signal 11"),
    ],
)
def test_a_decoder_that_ends_during_a_request_is_an_error_and_the_next_read_works(tmp_path, number, message):
    path = numbers(tmp_path / "a.parquet")
    table = open_table(path)
    process, requests = decoder(), decoder().stdin

    def write(request: bytes) -> int:
        process.send_signal(signal.SIGSTOP)
        size = requests.write(request)
        os.kill(process.pid, number)
        os.kill(process.pid, signal.SIGCONT)
        return size

    process.stdin = SimpleNamespace(write=write, close=requests.close)
    with pytest.raises(DataError, match=message):
        list(table.chunks())
    assert read(path) == list(range(ROWS))


@pytest.mark.skipif(os.name == "nt", reason="no such signals here")
def test_control_c_is_for_this_process_alone(tmp_path):
    path = numbers(tmp_path / "a.parquet")
    read(path)
    pid = decoder().pid
    os.kill(pid, signal.SIGINT)
    assert read(path) == list(range(ROWS))
    assert decoder().pid == pid


def test_where_no_decoder_starts_the_reason_is_told(tmp_path, monkeypatch):
    path = numbers(tmp_path / "a.parquet")
    without_polars = [entry for entry in sys.path if not (Path(entry) / "polars").is_dir()]
    for name, value, reason in (
        ("executable", "/nowhere/python", "No such file"),
        ("path", without_polars, "No module named 'polars'"),
    ):
        parquet._stop()
        with monkeypatch.context() as patch, pytest.raises(DataError, match=f"which must start; .*{reason}"):
            patch.setattr(sys, name, value)
            open_table(path)
        assert read(path) == list(range(ROWS))


def test_a_file_on_disk_does_where_the_system_has_none_in_memory(tmp_path, monkeypatch):
    path = numbers(tmp_path / "a.parquet")
    parquet._stop()
    monkeypatch.setattr(sys, "platform", "another")
    assert read(path, rows=9) == list(range(ROWS))
    parquet._stop()


def test_the_memory_of_a_large_answer_is_given_back(tmp_path, monkeypatch):
    path = numbers(tmp_path / "a.parquet")
    sizes = []
    for most in (parquet.KEPT_BYTES, 1000):
        monkeypatch.setattr(parquet, "KEPT_BYTES", most)
        assert read(path) == list(range(ROWS))
        sizes.append(os.fstat(parquet._decoder.answer.fileno()).st_size)
    assert sizes[0] > ROWS * 8
    assert sizes[1] == 0


def test_a_decoder_starts_with_polars_alone():
    started = subprocess.run(
        [sys.executable, "-X", "importtime", "-P", parquet_decoder.__file__],
        input=f'["{sys.path[-1]}"]\n',
        capture_output=True,
        text=True,
    )
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in started.stderr.splitlines()}
    assert "polars" in modules
    assert not modules & {"crossrank", "torch", "numpy", "subprocess"}


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system does not tell when another's process ends")
@pytest.mark.parametrize("end", ["", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_no_decoder_is_left_behind_and_nothing_of_it_is_printed(tmp_path, end):
    good, bad = numbers(tmp_path / "good.parquet"), tmp_path / "bad.parquet"
    content = good.read_bytes()
    bad.write_bytes(content[:8] + bytes(len(content) // 2) + content[8 + len(content) // 2 :])
    code = f"""
import os, signal, sys
from crossrank.data import open_table, parquet
from crossrank.errors import DataError
try:
    list(open_table(sys.argv[2]).chunks())
except DataError:
    print("refused")
list(open_table(sys.argv[1]).chunks())
print(parquet._decoder.process.pid, flush=True)
{end}
"""
    parent = subprocess.run([sys.executable, "-X", "dev", "-c", code, good, bad], capture_output=True, text=True)
    assert parent.stderr == ""
    refused, pid = parent.stdout.split()
    assert refused == "refused"
    with contextlib.suppress(ProcessLookupError):  # gone already
        end = os.pidfd_open(int(pid))  # readable once the process has ended, even if nobody waits for it
        assert select.select([end], [], [], 300)[0]
        os.close(end)
