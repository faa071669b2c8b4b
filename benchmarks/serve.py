"""Requests per second and latency of single-row ``/score``, ours and FastAPI with eager PyTorch.

``python benchmarks/serve.py RUN ROWS.csv --clients 1 16 128 --seconds 5``. One process each, the same run, connections
kept alive; the clients are one more process on the same machine. The contenders take turns. The processor time of a
request is that of the server's processes (Linux), and moves less than the others on a machine that has more to do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

HERE = Path(__file__).parent
PORTS = itertools.count(8731)


def commands(run: str, bundle: str | None, port: int) -> dict[str, list[str]]:
    python = sys.executable
    ours = [python, "-m", "crossrank", "serve", "--port", str(port)]
    return {
        "FastAPI + eager PyTorch": [python, str(HERE / "rivals" / "serve_fastapi.py"), run, str(port)],
        "crossrank serve, the run": [*ours, run],
        **({"crossrank serve, its bundle": [*ours, bundle]} if bundle else {}),
    }


def processor_seconds(pid: int) -> float:
    """What a process and its children have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor_seconds(int(child)) for child in children)


@contextlib.contextmanager
def serving(command: list[str], port: int) -> Iterator[int]:
    with Path(os.devnull).open("w") as nowhere, subprocess.Popen(command, stderr=nowhere, stdout=nowhere) as process:
        try:
            asyncio.run(until_open(port))
            yield process.pid
        finally:
            process.terminate()
            process.wait(timeout=30)


async def until_open(port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.1)
    raise SystemExit("the server did not come up")


async def client(port: int, requests: Iterator[bytes], end: float, times: list[float]) -> None:
    """One connection that asks again as soon as it is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (start := time.perf_counter()) < end:
        writer.write(next(requests))
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(head.decode())
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        await reader.readexactly(size)
        times.append(time.perf_counter() - start)
    writer.close()


async def load(port: int, bodies: list[bytes], clients: int, seconds: float) -> list[float]:
    head = "POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    requests = itertools.cycle([head.format(len(body)).encode() + body for body in bodies])
    times: list[float] = []
    end = time.perf_counter() + seconds
    await asyncio.gather(*(client(port, requests, end, times) for _ in range(clients)))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("rows", help="a table that the run can score")
    parser.add_argument("--bundle", help="the same run as a bundle, made by crossrank export")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    table = pl.read_csv(options.rows, n_rows=1000)
    bodies = [json.dumps(row).encode() for row in table.to_dicts()]
    print(
        "| clients | server | requests/s | p50 ms | p99 ms | processor ms |\n| ---: | --- | ---: | ---: | ---: | ---: |"
    )
    for clients, _ in itertools.product(options.clients, range(options.repeats)):
        for name in commands(options.run, options.bundle, 0):
            port = next(PORTS)
            with serving(commands(options.run, options.bundle, port)[name], port) as pid:
                asyncio.run(load(port, bodies, clients, 1.0))
                before = processor_seconds(pid)
                times = asyncio.run(load(port, bodies, clients, options.seconds))
                used = 1000 * (processor_seconds(pid) - before) / len(times)
            p50, p99 = 1000 * np.quantile(times, [0.5, 0.99])
            rate = len(times) / options.seconds
            print(f"| {clients} | {name} | {rate:,.0f} | {p50:.2f} | {p99:.2f} | {used:.2f} |", flush=True)


if __name__ == "__main__":
    main()
