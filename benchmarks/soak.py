"""A server under mixed load for a while: no wrong answer, no failed request, memory that does not grow.

    python benchmarks/soak.py                      half an hour on a run that it trains itself
    python benchmarks/soak.py --seconds 60
    python benchmarks/soak.py --rate 300           beside other work

Clients ask all the time, each at its own pace: single rows, batches of 50, rankings of a catalogue. Every answer is
compared with the run's own. Others send malformed and hostile requests (hostile.py), and senders that never finish hold
connections. Every 20 s the server is told to load its run again, a link that turns between two folders; every three
minutes the younger of its two processes is killed with SIGKILL, and must be back. Requests that were under way in that
process break, and are the only ones that may. First the server is asked as fast as it answers, and then for a share of
that, or at a given rate.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile

from crossrank.data.generators.demo import click_log, schema
from crossrank.data.prepare import prepare
from crossrank.runs import Run
from crossrank.serving.ranker import Ranker
from crossrank.training import train

OWN = ["item", "category", "tags", "price", "age_days"]
ADMIN_TOKEN = "a token that nobody has to guess".replace(" ", "-")
HOSTILE_PAUSE = 0.1  # seconds between requests of one of the two hostile clients
SLOW_SENDERS = 4
TOLERANCE = 1e-6  # a row's score may depend on the rows beside it by the rounding of a sum


Measured = tuple[float, float, int]  # when, the private MB of a process, its open files


class Work:
    """What is asked, and what must be answered."""

    def __init__(self, folder: Path) -> None:
        frame = click_log(20_000, seed=1).frame
        config: dict[str, Any] = {"training": {"max_steps": 100, "memory": "none"}}
        run = train(prepare(frame, schema(), folder / "dataset", progress=False), into=folder / "a", config=config)
        shutil.copytree(folder / "a", folder / "b")
        (folder / "current").symlink_to("a")
        items = frame.select(OWN).unique("item", maintain_order=True)
        items.write_parquet(folder / "items.parquet")
        self.rows = frame.drop("click").head(1000).to_dicts()
        self.scores = Run.open(run.path).predict(self.rows).tolist()
        ranker = Ranker.open(run).load(items, id="item")
        self.contexts = [{name: row[name] for name in row if name not in OWN} for row in self.rows[:50]]
        self.best = [ranker.rank(context, k=10).scores.tolist() for context in self.contexts]
        row = self.rows[0]
        bodies = hostile.bodies(row, self.contexts[0], "price", "tags")
        self.attacks = [*bodies, *hostile.protocol("current"), *hostile.http(row)]
        self.slow = hostile.slow(row)
        self.good = hostile.request(json.dumps(row).encode())

    def attack(self) -> hostile.Attack:
        """One of those that are over soon."""
        return hostile.flipped(self.good) if random.random() < 0.2 else random.choice(self.attacks)

    def one(self) -> tuple[str, Any, list[float]]:
        place = random.randrange(len(self.rows))
        return "/score", self.rows[place], [self.scores[place]]

    def many(self) -> tuple[str, Any, list[float]]:
        start = random.randrange(len(self.rows) - 50)
        return "/score", {"rows": self.rows[start : start + 50]}, self.scores[start : start + 50]

    def ranking(self) -> tuple[str, Any, list[float]]:
        place = random.randrange(len(self.contexts))
        return "/rank", {"context": self.contexts[place], "k": 10}, self.best[place]


async def ask(port: int, path: str, body: bytes, kept: list[Any]) -> tuple[int, bytes]:
    """A request over a kept connection, or a new one."""
    if not kept:
        kept[:] = await asyncio.open_connection("127.0.0.1", port)
    reader, writer = kept
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    writer.write(head.encode() + b"\r\n" + body)
    try:
        head_bytes = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        answer = await reader.readexactly(int(re.findall(rb"(?i)content-length: (\d+)", head_bytes)[0]))
    except (OSError, asyncio.IncompleteReadError):
        kept.clear()
        raise
    if b"connection: close" in head_bytes.lower():
        writer.close()
        kept.clear()
    return int(head_bytes.split()[1]), answer


class Soak:
    """Clients that go on until told, and what they have met."""

    def __init__(self, port: int, work: Work) -> None:
        self.port, self.work = port, work
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.killed_at = float("inf")

    async def well_formed(self, kind: str, end: float, pause: float) -> None:
        kept: list[Any] = []
        due = time.monotonic()
        while time.monotonic() < end:
            path, content, expected = getattr(self.work, kind)()
            try:
                status, answer = await ask(self.port, path, json.dumps(content).encode(), kept)
            except (OSError, asyncio.IncompleteReadError) as error:
                self._broken(kind, error)
                continue
            found = json.loads(answer)
            scores = found.get("scores") or [one["score"] for one in found.get("items", [])]
            near = len(scores) == len(expected) and all(
                abs(a - b) <= TOLERANCE for a, b in zip(scores, expected, strict=True)
            )
            self.counts[kind] += 1
            if status != 200 or not near:
                self.wrong.append(f"{kind}: status {status}, {answer[:200]!r}")
            due += random.expovariate(1 / pause) if pause else 0.0
            await asyncio.sleep(max(due - time.monotonic(), 0.0))

    def _is_killed(self) -> bool:
        return 0 <= time.monotonic() - self.killed_at < 2

    def _broken(self, kind: str, error: Exception) -> None:
        if self._is_killed():
            self.counts["broken by a kill"] += 1
        else:
            self.wrong.append(f"{kind}: {type(error).__name__}")

    async def hostile(self, end: float, choose: Callable[[], hostile.Attack], pause: float) -> None:
        while time.monotonic() < end:
            one = choose()
            wrong = await hostile.attempt(self.port, one)
            self.counts[one.kind] += 1
            if wrong and not self._is_killed():
                self.wrong.append(f"{one.kind}: {wrong}; sent {one.parts!r:.200}")
            await asyncio.sleep(random.expovariate(1 / pause))

    async def load(self, seconds: float, pause: float) -> None:
        end = time.monotonic() + seconds
        kinds = ["one"] * 8 + ["many"] * 2 + ["ranking"] * 2
        clients = [self.well_formed(kind, end, pause) for kind in kinds]
        clients += [self.hostile(end, self.work.attack, HOSTILE_PAUSE) for _ in range(2)]
        clients += [self.hostile(end, lambda: random.choice(self.work.slow), 1.0) for _ in range(SLOW_SENDERS)]
        await asyncio.gather(*clients)

    @property
    def num_answers(self) -> int:
        return sum(self.counts[kind] for kind in ("one", "many", "ranking"))


def children(pid: int) -> list[int]:
    """The processes that answer: those of the server that have a model loaded."""
    found = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return sorted(child for child in found if memory(child) > 50)


def memory(pid: int) -> float:
    """MB of a process that are its own; none where it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private")) / 1024


async def trouble(soak: Soak, server: int, folder: Path, seconds: float, kill_every: float) -> list[Measured]:
    """Reloads every 20 s, a kill now and then; what the oldest process, which is never killed, holds over time."""
    start, measured, turn = time.monotonic(), list[Measured](), 0
    kill_at = start + min(kill_every, seconds / 2)
    while time.monotonic() < start + seconds - 1:
        await asyncio.sleep(min(20.0, seconds / 6))
        turn += 1
        new = folder / "new"
        new.symlink_to("ab"[turn % 2])
        new.replace(folder / "current")
        os.kill(server, signal.SIGHUP)
        soak.counts["reloads"] += 1
        workers = children(server)
        open_files = len(list(Path(f"/proc/{workers[0]}/fd").iterdir()))
        measured.append((time.monotonic() - start, memory(workers[0]), open_files))
        if kill_at <= time.monotonic() < start + seconds - 10:
            soak.counts["kills"] += 1
            soak.killed_at = time.monotonic()
            kill_at = soak.killed_at + kill_every
            os.kill(workers[-1], signal.SIGKILL)
            for _ in range(600):
                await asyncio.sleep(0.1)
                now = children(server)
                if len(now) == len(workers) and workers[-1] not in now:
                    soak.counts["brought back"] += 1
                    break
    return measured


async def soaked(args: argparse.Namespace, port: int, server: int, folder: Path, work: Work) -> Soak:
    fast = Soak(port, work)
    rate = args.rate
    if rate is None:
        await fast.load(5.0, 0.0)
        rate = args.share * fast.num_answers / 5
    soak = Soak(port, work)
    print(f"asking for {rate:,.0f} requests/s", flush=True)
    _, measured = await asyncio.gather(
        soak.load(args.seconds, 12 / rate),  # from one request of a client to its next, of twelve clients
        trouble(soak, server, folder, args.seconds, args.kill_every),
    )
    soak.wrong += fast.wrong
    _, middle, open_in_the_middle = [one for one in measured if one[0] < args.seconds / 2][-1]
    _, end, open_at_the_end = measured[-1]
    print(f"well-formed requests/s: {soak.num_answers / args.seconds:,.0f}")
    for kind, count in sorted(soak.counts.items()):
        print(f"  {kind:<20} {count:>9,}")
    print(f"private MB of the oldest process: {middle:.0f} in the middle, {end:.0f} at the end")
    print(f"its open files: {open_in_the_middle} in the middle, {open_at_the_end} at the end")
    return soak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--share", type=float, default=0.8, help="of the capacity, which is measured first")
    parser.add_argument("--rate", type=float, help="well-formed requests a second, whatever the capacity")
    parser.add_argument("--kill-every", type=float, default=180.0, help="seconds")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        work = Work(folder)
        words = ["--catalogue", str(folder / "items.parquet"), "--id", "item", "--workers", "2", "--port", "0"]
        command = [sys.executable, "-m", "crossrank", "serve", str(folder / "current"), *words]
        with (folder / "log").open("w") as log:
            environment = {**os.environ, "CROSSRANK_ADMIN_TOKEN": ADMIN_TOKEN}
            server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().rsplit(":", 1)[1])
            while len(children(server.pid)) < 2 or (folder / "log").read_text().count('"ready"') < 2:
                time.sleep(0.2)
            soak = asyncio.run(soaked(args, port, server.pid, folder, work))
        finally:
            server.terminate()
            server.wait(timeout=60)
        lines = (folder / "log").read_text().splitlines()
    errors = [line for line in lines if is_error(line)]
    print(f"wrong answers and failed requests: {len(soak.wrong)}; errors in the log: {len(errors)}")
    for line in [*soak.wrong[:20], *errors[:10]]:
        print(f"  {line[:1000]}")
    raise SystemExit(1 if soak.wrong or errors or soak.counts["brought back"] < max(soak.counts["kills"], 1) else 0)


def is_error(line: str) -> bool:
    """Whether a line of the log is one of an error here: a status of 500 or above, a traceback, or no JSON at all."""
    try:
        told = json.loads(line)
    except ValueError:
        return True
    return told.get("status", 0) >= 500 or "traceback" in told or told.get("level") in ("error", "critical")


if __name__ == "__main__":
    main()
