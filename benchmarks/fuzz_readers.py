"""Feed damaged files to the table reader for a while.

    python benchmarks/fuzz_readers.py --seconds 600
    python benchmarks/fuzz_readers.py --seconds 600 --atheris        cases made of those that reached new lines of ours

Each case is a good file (csv, tsv, gzip, parquet) with some bytes changed, doubled, cut or swapped. A reader may refuse
it with a CrossRankError, or read it: text must then give the rows that Python's csv module reads. Anything else is a
finding: its file is kept and the exit status is 1. Cases run in a process of their own, so that one which ends the
whole process is a finding as well and the others go on; with --atheris (`pip install atheris`) the first ends it.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl

from crossrank.data.delimited import DelimitedFile
from crossrank.data.table import open_table
from crossrank.errors import CrossRankError

KINDS = ["csv", "tsv", "csv.gz", "parquet"]
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

GUIDED = """
import sys
import atheris
with atheris.instrument_imports(include=["crossrank"]):
    import fuzz_readers
atheris.Setup(sys.argv[:1] + sys.argv[2:], lambda content: fuzz_readers.check_bytes(content, sys.argv[1]))
atheris.Fuzz()
"""


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


def make_case(rng: random.Random, folder: Path, kinds: list[str]) -> tuple[str, bytes]:
    """A file name and its damaged content."""
    kind = rng.choice(kinds)
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
        as_words = rng.choice([(), table.columns])  # as preparation reads them
        chunks = list(table.chunks(rows=rng.choice([1, 3, 1000]), as_words=as_words))
    except CrossRankError:
        return "refused"
    columns = [[value for chunk in chunks for value in chunk.column(name)] for name in table.columns]
    found = list(zip(*columns, strict=True))
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


def run_cases(seed: int, first: int, seconds: float, kinds: list[str], into: Path) -> None:
    """Run cases until the time is over; each outcome is a line of JSON on stdout, written before and after the case."""
    end = time.monotonic() + seconds
    for case in itertools.count(first):
        if time.monotonic() > end:
            return
        rng = random.Random(f"{seed}/{case}")
        name, content = make_case(rng, into, kinds)
        (into / name).write_bytes(content)
        print(json.dumps({"case": case, "file": name}), flush=True)
        try:
            outcome = check(into / name, rng)
        except KeyboardInterrupt:
            raise
        except BaseException:  # a panic of polars is no Exception
            print(json.dumps({"case": case, "file": name, "finding": traceback.format_exc()}), flush=True)
            return
        print(json.dumps({"case": case, "file": name, "outcome": outcome}), flush=True)


def fuzz(options: argparse.Namespace) -> int:
    """Run processes full of cases until the time is over; the number of findings."""
    outcomes: Counter[str] = Counter()
    findings, case, end = 0, 0, time.monotonic() + options.seconds
    options.into.mkdir(parents=True, exist_ok=True)
    while (left := end - time.monotonic()) > 0:
        words = [f"--seconds={left}", f"--seed={options.seed}", f"--into={options.into}", f"--first={case + 1}"]
        command = [sys.executable, __file__, *words, "--kinds", *options.kinds]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        said: dict[str, Any] = {}
        for line in child.stdout or ():
            said = json.loads(line)
            if "outcome" in said:
                outcomes[f"{said['file']}: {said['outcome']}"] += 1
        case = said.get("case", case)
        if child.wait() or "finding" in said:
            findings += 1
            kept = (options.into / said["file"]).rename(options.into / f"finding-{options.seed}-{case}-{said['file']}")
            print(f"{kept}\n{said.get('finding', f'the process ended with status {child.returncode}')}", flush=True)
    print(f"seed {options.seed}: {case:,} cases, {findings} findings")
    for outcome, count in sorted(outcomes.items()):
        print(f"  {outcome}: {count:,}")
    return findings


def fuzz_guided(options: argparse.Namespace) -> int:
    """Let atheris damage files until the time is over, or it finds something; its exit status."""
    corpus, rng = options.into / "corpus", random.Random(options.seed)
    corpus.mkdir(parents=True, exist_ok=True)
    for number in range(256):
        kind = KINDS[number % len(KINDS)]
        if kind in options.kinds:
            content = make_case(rng, options.into, [kind])[1]
            (corpus / f"start-{number}").write_bytes(bytes([number]) + content)
    words = [
        f"-max_total_time={options.seconds:.0f}",
        f"-seed={options.seed}",
        f"-artifact_prefix={options.into}/finding-",
    ]
    command = [sys.executable, "-c", GUIDED, options.into, *words, "-timeout=60", "-print_final_stats=1", corpus]
    return subprocess.run(command, cwd=Path(__file__).parent, check=False).returncode


def check_bytes(content: bytes, into: str) -> None:
    """Read the file that stands after the first byte, which says what kind of file it is and how to read it."""
    first = content[0] if content else 0
    path = Path(into) / f"case.{KINDS[first % len(KINDS)]}"
    path.write_bytes(content[1:])
    check(path, random.Random(first))


def main() -> None:
    parser = argparse.ArgumentParser(description="Feed damaged files to the table reader for a while.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--into", type=Path, default=Path(tempfile.gettempdir()) / "crossrank-fuzz")
    parser.add_argument("--atheris", action="store_true", help="let atheris make the cases, guided by coverage")
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)  # given to the processes with the cases
    options = parser.parse_args()
    if options.first is not None:
        run_cases(options.seed, options.first, options.seconds, options.kinds, options.into)
    else:
        print(f"seed {options.seed}, files in {options.into}", flush=True)
        sys.exit(1 if (fuzz_guided if options.atheris else fuzz)(options) else 0)


if __name__ == "__main__":
    main()
