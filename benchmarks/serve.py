"""Requests per second and latency over HTTP: ours, FastAPI with eager PyTorch, mosec, and NVIDIA's Triton server.

    python benchmarks/serve.py                          single rows and rankings, 1, 16 and 128 clients; half an hour
    python benchmarks/serve.py --workloads rank --clients 16 --only "crossrank serve" mosec
    python benchmarks/serve.py --workers 2              two processes that compute, of each server but Triton

The model is the one of ``rank.py`` (the paper's Criteo shape, parallel, random weights), written as a run and as a
bundle below ``--into``, where mosec and Triton get environments of their own on first use; Triton needs a Python 3.11
from Debian (``--triton-python``). ``--run``, ``--bundle`` and ``--rows`` take another run, for single rows.

score       a row in each request. mosec and Triton gather the rows of several requests, as we do.
rank        the best 20 of 500 items of a catalogue of 100,000, named by their ids, with encoded columns kept by the
            server; the rivals put whole rows together and score all of them.
rank-rows   the same for the rivals with 500 whole rows in each request, as their protocols have it.

One server process each, whose products have one thread, or several with ``--workers``, connections kept alive; the
clients are one more process on the same machine, which takes some 17 µs of processor time for a request. With
``--pinned`` the server has the first core alone and the clients the second one. The processor time of a request is that
of the server's processes (Linux), and moves less than the others on a machine that has more to do.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

HERE = Path(__file__).resolve().parent
RIVALS = HERE / "rivals"
PORTS = itertools.count(8731)
ITEMS, CANDIDATES, DISTINCT = 100_000, 500, 100
HEAD = "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
SIZE = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
SERVERS = ("FastAPI + eager PyTorch", "mosec", "Triton", "crossrank serve", "crossrank serve, its bundle")
WORKLOADS = ("score", "rank", "rank-rows")


def environment(folder: Path, python: str, requirements: Path) -> str:
    """The Python of a virtual environment with these packages, made on first use."""
    if not (folder / ".complete").is_file():
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", "-r", requirements], check=True)
        (folder / ".complete").touch()
    return str(folder / "bin" / "python")


def make_model(folder: Path) -> None:
    """The run and the bundle, and items as a table and as JSON."""
    import rank
    import torch

    from crossrank.runs import write_run
    from crossrank.serving.export import export

    torch.manual_seed(0)
    settings = {"structure": "parallel", "cross": rank.FULL, "deep": {"sizes": [768, 768]}}
    made = rank.made(rank.encoder(), settings)
    (folder / "run").mkdir(parents=True)
    config = {"model": {"name": "dcn-v2", "embedding": {"dim": 39}, **settings}, "training": {}, "split": {}}
    info = {"seed": 0, "data_fingerprint": ""}
    write_run(folder / "run", model=made.model, encoder=made.encoder, config=config, info=info, report={})
    export(folder / "run", folder / "bundle")
    items = pl.DataFrame({"id": np.arange(ITEMS), **rank.rows(ITEMS, rank.ITEM, 1)})
    items.write_parquet(folder / "items.parquet")
    (folder / "items.json").write_text(json.dumps(items.to_dicts()))
    pl.DataFrame(rank.rows(1000, [*rank.CATEGORIES, *rank.NUMBERS], 2)).write_parquet(folder / "rows.parquet")


def server_command(server: str, args: argparse.Namespace, port: int) -> tuple[list[str], dict[str, str]]:
    """The command of a server, and what its environment has."""
    run, bundle, items, workers = str(args.run), str(args.bundle), str(args.into / "items.json"), str(args.workers)
    at = {"RUN": run, "BUNDLE": bundle, "ITEMS": items, "WORKERS": workers}
    if server == "mosec":
        python = environment(args.into / "mosec", sys.executable, RIVALS / "mosec.txt")
        return [python, str(RIVALS / "serve_mosec.py"), "--port", str(port)], at
    if server == "Triton":
        python = environment(args.into / "triton", args.triton_python, RIVALS / "triton.txt")
        return [python, str(RIVALS / "serve_triton.py"), bundle, items, str(port)], {}
    if server == "FastAPI + eager PyTorch":
        return [sys.executable, str(RIVALS / "serve_fastapi.py"), str(port)], at
    ours = [sys.executable, "-m", "crossrank", "serve", "--port", str(port), "--workers", workers]
    if server == "crossrank serve, its bundle":
        return [*ours, bundle], {}
    catalogue = [] if args.rows else ["--catalogue", str(args.into / "items.parquet"), "--id", "id"]
    return [*ours, run, *catalogue], {}


def requests_of(server: str, workload: str, args: argparse.Namespace) -> list[bytes]:
    """What its clients send, again and again; nothing where a server has no such path."""
    table = pl.read_parquet(args.rows or args.into / "rows.parquet")
    rows, draw = table.head(1000).to_dicts(), np.random.default_rng(5)
    if workload == "score":
        path, bodies = "/score", rows
        if server == "Triton":
            path, bodies = "/v2/models/score/infer", [tensors("row", [json.dumps(row)]) for row in rows]
        return written(path, bodies)
    if server == "crossrank serve, its bundle" or (server == "crossrank serve" and workload == "rank-rows"):
        return []
    kept = json.loads((args.into / "items.json").read_text())
    bodies = []
    for row in rows[:DISTINCT]:
        ids = draw.choice(ITEMS, CANDIDATES, replace=False).tolist()
        context = {name: value for name, value in row.items() if name not in kept[0]}
        whole = [{**context, **{name: kept[one][name] for name in kept[0] if name != "id"}} for one in ids]
        if server != "Triton":
            asked = {"context": context, "items": ids} if workload == "rank" else {"rows": whole}
            bodies.append({**asked, "k": 20})
        elif workload == "rank":
            bodies.append(tensors("request", [json.dumps({"context": context, "items": ids, "k": 20})]))
        else:
            bodies.append(tensors("row", [json.dumps(one) for one in whole]))
    models = {"rank": "/v2/models/rank/infer", "rank-rows": "/v2/models/score/infer"}
    return written(models[workload] if server == "Triton" else f"/{workload}", bodies)


def tensors(name: str, texts: list[str]) -> dict[str, Any]:
    return {"inputs": [{"name": name, "shape": [len(texts), 1], "datatype": "BYTES", "data": texts}]}


def written(path: str, bodies: list[Any]) -> list[bytes]:
    texts = [json.dumps(body).encode() for body in bodies]
    return [HEAD.format(path, len(text)).encode() + text for text in texts]


def processor_seconds(pid: int) -> float:
    """What a process and its children have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor_seconds(int(child)) for child in children)


@contextlib.contextmanager
def serving(command: list[str], more: dict[str, str], args: argparse.Namespace) -> Iterator[subprocess.Popen[bytes]]:
    """A server on the first core, or on all; what it says goes into a file."""
    core = ["taskset", "-c", "0"] if args.pinned else []
    environ = {**os.environ, **more, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent / "src")}
    with (
        (args.into / "server.log").open("w") as log,
        subprocess.Popen([*core, *command], stderr=log, stdout=log, env=environ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=60)


def until_ready(server: subprocess.Popen[bytes], port: int, request: bytes) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError, SystemExit):
            load(port, [request], 1, 0.0)
            return
        if server.poll() is not None:
            break
        time.sleep(0.2)
    raise SystemExit("the server did not come up; see server.log")


def until_idle(pid: int) -> None:
    """Wait for the processes of a server that come up after the first."""
    for _ in range(120):
        before = processor_seconds(pid)
        time.sleep(0.5)
        if processor_seconds(pid) - before < 0.05:
            return


class Client:
    """One connection that asks again as soon as it is answered."""

    def __init__(self, port: int, requests: Iterator[bytes]) -> None:
        self.socket, self.requests = socket.create_connection(("127.0.0.1", port), timeout=60), requests
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.got, self.start = b"", 0.0

    def ask(self) -> None:
        self.start = time.perf_counter()
        self.socket.sendall(next(self.requests))

    def is_answered(self) -> bool:
        """Whether the part that has arrived is the last one."""
        part = self.socket.recv(1 << 16)
        self.got += part
        head, there, body = self.got.partition(b"\r\n\r\n")
        size = SIZE.search(head) if there else None
        if not part or (size and not head.startswith(b"HTTP/1.1 200")):
            raise SystemExit(self.got.decode() or "the server hung up")
        if size is None or len(body) < int(size[1]):
            return False
        self.got = b""
        return True


def load(port: int, requests: list[bytes], clients: int, seconds: float) -> list[float]:
    """The seconds of each answer. It costs little beyond the calls of the system: the servers are to be measured."""
    every = itertools.cycle(requests)
    times: list[float] = []
    asking = {one.socket.fileno(): one for one in [Client(port, every) for _ in range(clients)]}
    with contextlib.ExitStack() as opened, select.epoll() as ready:
        for place, one in asking.items():
            opened.enter_context(one.socket)
            ready.register(place, select.EPOLLIN)
            one.ask()
        end, left = time.perf_counter() + seconds, clients
        while left:
            for place, _ in ready.poll():
                one = asking[place]
                if not one.is_answered():
                    continue
                now = time.perf_counter()
                times.append(now - one.start)
                if now < end:
                    one.ask()
                else:
                    left -= 1
    return times


def measure(args: argparse.Namespace, server: str, workload: str, clients: int) -> None:
    port = next(PORTS)
    requests = requests_of(server, workload, args)
    if not requests:
        return
    with serving(*server_command(server, args, port), args) as process:
        until_ready(process, port, requests[0])
        until_idle(process.pid)
        load(port, requests, clients, 1.0)
        before = processor_seconds(process.pid)
        times = load(port, requests, clients, args.seconds)
        used = 1000 * (processor_seconds(process.pid) - before) / len(times)
    p50, p99 = 1000 * np.quantile(times, [0.5, 0.99])
    cells = [workload, clients, server, f"{len(times) / args.seconds:,.0f}", f"{p50:.2f}", f"{p99:.2f}", f"{used:.2f}"]
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path(".bench") / "serve", help="for models and environments")
    parser.add_argument("--run", type=Path, help="another run, for single rows")
    parser.add_argument("--bundle", type=Path, help="the same run as a bundle")
    parser.add_argument("--rows", type=Path, help="a Parquet table that it can score")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--only", nargs="+", choices=SERVERS, default=SERVERS, metavar="SERVER", help="some servers")
    parser.add_argument("--workers", type=int, default=1, help="processes of a server that compute")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--pinned", action="store_true", help="a core for the server and one for the clients")
    parser.add_argument("--triton-python", default="/usr/bin/python3")
    args = parser.parse_args()
    args.into = args.into.resolve()
    if not (args.into / "rows.parquet").is_file():
        make_model(args.into)
    args.run, args.bundle = args.run or args.into / "run", args.bundle or args.into / "bundle"
    if args.pinned:
        os.sched_setaffinity(0, {1})
    print("| work | clients | server | requests/s | p50 ms | p99 ms | processor ms |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for workload, clients in itertools.product(args.workloads, args.clients):
        for server in args.only:
            measure(args, server, workload, clients)


if __name__ == "__main__":
    main()
