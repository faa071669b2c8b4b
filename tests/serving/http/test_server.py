"""The processes, started as a person starts them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from crossrank.errors import ConfigError
from crossrank.serving.http.server import bind

ADMIN = "an-admin-token-of-ours"


@contextlib.contextmanager
def started(*words, **environment):
    """A server and its address; at the end it is told to stop, and must."""
    command = [sys.executable, "-m", "crossrank", "serve", *map(str, words), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment) as process:
        try:
            while not (found := re.search(r"on (http://\S+)", line := process.stdout.readline())):
                assert line, "the server ended before it listened"
            yield process, found[1]
        finally:
            process.terminate()
            process.communicate(timeout=30)


@pytest.fixture
def link(run, tmp_path):
    """A link to a run, and a second run with other weights beside it."""
    shutil.copytree(run.path, tmp_path / "first")
    shutil.copytree(run.path, tmp_path / "second")
    info = json.loads((tmp_path / "second" / "run.json").read_text())
    info["checksums"] = dict(reversed(info["checksums"].items())) | {"report.json": None}
    del info["checksums"]["report.json"], info["checksums"]["schema.json"], info["checksum"]  # another version
    (tmp_path / "second" / "run.json").write_text(json.dumps(info))
    (tmp_path / "current").symlink_to("first")
    return tmp_path / "current"


def turn(link, target: str) -> None:
    new = link.with_name("new")
    new.symlink_to(target)
    new.replace(link)


def until(condition, seconds: float = 30.0):
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.05)
    return result


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]


def num_ready(address: str, version: str = ".*") -> float:
    """How many processes have a model."""
    text = httpx.get(f"{address}/metrics").text
    return sum(float(num) for num in re.findall(rf'crossrank_model{{version="{version}"}} (.*)', text))


def num_sockets(pid: int) -> int:
    return sum(file.is_socket() for file in Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.slow
def test_a_server_scores_reloads_loses_a_worker_and_stops_without_a_failed_request(run, link, rows) -> None:
    expected = run.predict(rows).tolist()
    with started(link, "--workers", 2, CROSSRANK_ADMIN_TOKEN=ADMIN) as (process, address):
        with httpx.Client(base_url=address, headers={"authorization": f"Bearer {ADMIN}"}) as client:
            first = client.post("/score", json={"rows": rows}).json()
            assert first["scores"] == expected
            turn(link, "second")
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                asked = [pool.submit(httpx.post, f"{address}/score", json={"rows": rows[:3]}) for _ in range(30)]
                second = client.post("/admin/reload").json()
                assert (second["before"], second["model"] != first["model"]) == (first["model"], True)
                assert all(one.result().status_code == 200 for one in asked)
            turn(link, "first")
            process.send_signal(signal.SIGHUP)
            until(lambda: client.get("/model").json()["version"] == first["model"])

        until(lambda: num_ready(address, first["model"]) == 2)
        os.kill(workers_of(process)[0], signal.SIGKILL)
        for _ in range(10):
            assert httpx.post(f"{address}/score", json=rows[0]).status_code == 200
        until(lambda: num_ready(address, first["model"]) == 2)

        host, port = address.removeprefix("http://").split(":")
        body = json.dumps({"rows": rows}).encode()
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            head = f"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            connection.sendall(head + body[:1000])
            time.sleep(0.2)
            process.terminate()
            time.sleep(0.2)
            connection.sendall(body[1000:])
            answer = b""
            while part := connection.recv(65536):
                answer += part
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["scores"] == expected
        assert process.wait(timeout=20) == 0


@pytest.mark.slow
def test_connections_opened_at_once_are_shared_among_the_processes_even_after_one_has_died(run) -> None:
    with started(run.path, "--workers", 2) as (process, address):
        host, port = address.removeprefix("http://").split(":")

        def opened_by_process() -> list[int]:
            workers = workers_of(process)
            before = [num_sockets(pid) for pid in workers]
            with contextlib.ExitStack() as opened:
                for _ in range(16):
                    opened.enter_context(socket.create_connection((host, int(port)), timeout=20))
                until(lambda: sum(map(num_sockets, workers)) == sum(before) + 16)
                more = [num_sockets(pid) - old for pid, old in zip(workers, before, strict=True)]
            until(lambda: [num_sockets(pid) for pid in workers] == before)
            return more

        for _ in range(2):
            until(lambda: num_ready(address) == 2)
            time.sleep(0.2)  # until the connections that asked this are closed
            fewest = sorted(min(opened_by_process()) for _ in range(5))
            assert fewest[2] > 16 / 3
            os.kill(workers_of(process)[0], signal.SIGKILL)
            until(lambda: num_ready(address) == 1)


def test_an_address_that_is_taken_is_told(tmp_path) -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(ConfigError, match="must be free"):
            bind("127.0.0.1", taken.getsockname()[1])


@pytest.mark.slow
def test_a_run_that_is_none_ends_the_server_with_a_sentence(tmp_path) -> None:
    command = [sys.executable, "-m", "crossrank", "serve", tmp_path, "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "must be a run folder" in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
