"""What the process that decodes parquet runs. By its path: with polars alone it starts in a fraction of a second.

The first line on stdin says where to find polars. Each further line is a request: with columns for some rows, without
for the names and the number of rows. The answer goes to stdout, a file that is written over each time, and then a NUL
and how it went to stderr, among what polars may have to say there. The end of stdin is the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import BinaryIO

LONGEST_ERROR = 500  # a short line is written in one piece, whatever polars says at the same moment


def decode(answer: BinaryIO, path: str, columns: Sequence[str] | None = None, start: int = 0, rows: int = 0) -> None:
    """Write what a file holds: an Arrow stream of some rows, or JSON."""
    import polars as pl

    lazy = pl.scan_parquet(path, glob=False)
    if columns is None:
        count = lazy.select(pl.len()).collect().item()
        answer.write(json.dumps([list(pl.read_parquet_schema(path)), count]).encode())
    else:
        frame = lazy.select(columns).slice(start, rows).collect()  # as fast as collect_batches with less memory
        frame.write_ipc_stream(answer)


def tell(size: int, error: str | None = None) -> None:
    """Say how many bytes the answer has, or why there is none."""
    os.write(2, f"\0{json.dumps([size, error])}\n".encode())


def main() -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    sys.path[:] = json.loads(sys.stdin.readline())
    import polars  # noqa: F401

    with os.fdopen(os.dup(1), "wb", buffering=0) as answer:
        os.dup2(2, 1)  # nothing that is printed may come between
        tell(0)
        for line in sys.stdin:
            answer.seek(0)
            try:
                decode(answer, **json.loads(line))
            except BaseException as error:  # a panic of polars is no Exception
                first, *_ = str(error).strip().splitlines() or [type(error).__name__]
                tell(0, first[:LONGEST_ERROR])
            else:
                tell(answer.tell())


if __name__ == "__main__":
    main()
