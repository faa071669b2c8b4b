"""Feed damaged files to the table reader for a while.

    python benchmarks/fuzz_readers.py --seconds 600

Each case is a good file (csv, tsv, gzip, parquet) with some bytes changed, doubled, cut or swapped. A reader may refuse
it with a CrossRankError, or read it: text must then give the rows that Python's csv module reads. Anything else is a
finding: its file is kept, its traceback printed, and the exit status is 1. The case being read lies in the folder as
well, so that a crash of the whole process leaves it behind.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import polars as pl

from crossrank.data.delimited import DelimitedFile
from crossrank.data.table import open_table
from crossrank.errors import CrossRankError

SPLICES = [
    b",",
    b"\t",
    b"\n",
    b"\r",
    b"\r\n",
    b'"',
    b'""',
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"x^",
    b";",
    b"\\",
    b"",
    b"9" * 400,
]


def text_file(rng: random.Random, separator: str) -> bytes:
    """A good table of random shape, about half of its cells quoted where quoting makes a difference."""
    width = rng.randint(1, 6)
    out = io.StringIO()
    style = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    writer = csv.writer(out, delimiter=separator, lineterminator=rng.choice(["\n", "\r\n"]), quoting=style)
    writer.writerow([f"c{column}" for column in range(width)])
    cells = ["", "0", "1", "-2.5", "ab c", "é", "日本", f"a{separator}b"]
    if rng.random() < 0.5:
        cells += ['say "x"', "two\nlines", "two\r\nlines"]
    for _ in range(rng.randint(0, 30)):
        writer.writerow(rng.choices(cells, k=width))
    return rng.choice([b"", b"\xef\xbb\xbf"]) + out.getvalue().encode()


def parquet_file(rng: random.Random, folder: Path) -> bytes:
    rows = rng.randint(0, 200)
    frame = pl.DataFrame(
        {
            "a": [rng.randint(-9, 9) for _ in range(rows)],
            "b": [rng.choice([None, "x", "long text" * 3]) for _ in range(rows)],
            "c": [[rng.random()] * rng.randint(0, 3) for _ in range(rows)],
        },
        schema={"a": pl.Int64, "b": pl.String, "c": pl.List(pl.Float64)},
    )
    compression = rng.choice(["uncompressed", "snappy", "zstd", "gzip", "lz4"])
    frame.write_parquet(folder / "good", compression=compression, row_group_size=rng.choice([7, 1000]))
    return (folder / "good").read_bytes()


def damage(rng: random.Random, content: bytes) -> bytes:
    data = bytearray(content)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 5, 20])):
        place = rng.randint(0, len(data))
        length = rng.choice([1, 1, 2, 7, 40])
        match rng.randrange(5):
            case 0:
                data[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                data[place:place] = rng.choice(SPLICES)
            case 2:
                del data[place : place + length]
            case 3:
                data[place:place] = data[place : place + length]
            case 4 if rng.random() < 0.2:
                del data[place:]
    return bytes(data)


def make_case(rng: random.Random, folder: Path) -> tuple[str, bytes]:
    """A file name and its damaged content."""
    kind = rng.choice(["csv", "tsv", "csv.gz", "parquet"])
    if kind == "parquet":
        return "case.parquet", damage(rng, parquet_file(rng, folder))
    content = damage(rng, text_file(rng, "\t" if kind == "tsv" else ","))
    if kind == "csv.gz":
        content = gzip.compress(content, 1)
        content = damage(rng, content) if rng.random() < 0.7 else content
    return f"case.{kind}", content


def check(path: Path, rng: random.Random) -> str:
    """Read one file; an AssertionError or a foreign exception is a finding."""
    on_error = rng.choice(["raise", "skip"])
    try:
        table = open_table(path, on_error=on_error)
        chunks = list(table.chunks(rows=rng.choice([1, 3, 1000])))
    except CrossRankError:
        return "refused"
    found = [row for chunk in chunks for row in chunk.frame.rows()]
    for chunk in chunks:
        chunk.where(chunk.frame.height - 1)
    part = table.parts[0]
    if isinstance(part, DelimitedFile) and not table.skipped:
        content = path.read_bytes()
        text = (gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content).removeprefix(b"\xef\xbb\xbf")
        reader = csv.reader(io.StringIO(text.decode(), newline=""), delimiter=part.separator, strict=True)
        expected = [tuple(field or None for field in row) for row in reader if row][1:]
        if found != expected:
            raise AssertionError(f"{len(found)} rows differ from the {len(expected)} rows of the csv module")
    return "read with lines left out" if table.skipped else "read"


def fuzz(seconds: float, seed: int, into: Path, tell: Callable[[str], None]) -> int:
    """Run cases until the time is over; the number of findings."""
    into.mkdir(parents=True, exist_ok=True)
    outcomes: Counter[str] = Counter()
    findings, case, end = 0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        case += 1
        rng = random.Random(f"{seed}/{case}")
        name, content = make_case(rng, into)
        path = into / name
        path.write_bytes(content)
        try:
            outcomes[f"{name}: {check(path, rng)}"] += 1
        except KeyboardInterrupt:
            raise
        except BaseException:  # a panic of polars is no Exception
            findings += 1
            kept = path.rename(into / f"finding-{seed}-{case}-{name}")
            tell(f"{kept}\n{traceback.format_exc()}")
    tell(f"seed {seed}: {case:,} cases, {findings} findings")
    for outcome, count in sorted(outcomes.items()):
        tell(f"  {outcome}: {count:,}")
    return findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--into", type=Path, default=Path(tempfile.gettempdir()) / "crossrank-fuzz")
    options = parser.parse_args()
    print(f"seed {options.seed}, files in {options.into}", flush=True)
    sys.exit(1 if fuzz(options.seconds, options.seed, options.into, lambda text: print(text, flush=True)) else 0)


if __name__ == "__main__":
    main()
