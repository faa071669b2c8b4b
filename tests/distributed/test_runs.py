"""From a command to a run folder, by several processes, some of which die."""

from __future__ import annotations

import collections
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from torchrun import ENVIRONMENT, NEEDS, torchrun

from crossrank.runs import Run
from crossrank.runs.lifecycle import is_interrupted
from crossrank.training import train

pytestmark = NEEDS

DISTURBED = Path(__file__).parent / "disturbed.py"
SETTINGS = {
    "model": {"name": "wide-deep", "embedding": {"dim": 4, "dropout": 0}, "deep": {"sizes": [8], "dropout": 0}},
    "training": {"batch_size": 128, "epochs": 3, "eval_every": 5, "patience": 0, "log_every": 5, "learning_rate": 0.01},
}
SETS = [
    "--set", "model.name=wide-deep", "--set", "model.embedding.dim=4", "--set", "model.deep.sizes=[8]",
    "--set", "model.embedding.dropout=0", "--set", "model.deep.dropout=0",
    *(word for key, value in SETTINGS["training"].items() for word in ("--set", f"training.{key}={value}")),
]  # fmt: skip


@pytest.fixture(scope="module")
def alone(dataset, tmp_path_factory):
    """What one process makes, without TorchRec."""
    return train(dataset, into=tmp_path_factory.mktemp("alone") / "run", config=SETTINGS)


def disturbed(dataset, into, *words, environment, processes=2, restarts=0, check=True):
    command = ["train", dataset.path, "--into", into, *SETS, "--set", "training.distributed=true", *words]
    return torchrun(
        f"--max-restarts={restarts}", DISTURBED, *command, processes=processes, check=check, environment=environment
    )


def assert_same(run, alone):
    """The journal and the final metrics, to what float32 leaves of them."""
    for mine, theirs in zip(run.metrics, alone.metrics, strict=True):
        assert mine["step"] == theirs["step"]
        if "valid" in theirs:
            for key in ("logloss", "auc"):
                assert mine["valid"][key] == pytest.approx(theirs["valid"][key], abs=2e-5)
                assert mine["valid_raw"][key] == pytest.approx(theirs["valid_raw"][key], abs=2e-5)
        else:
            assert mine["loss"] == pytest.approx(theirs["loss"], abs=2e-6)
    assert run.report["training"]["best_step"] == alone.report["training"]["best_step"]
    for key, value in alone.report["test"].items():
        assert run.report["test"][key] == pytest.approx(value, abs=2e-5)


def test_two_workers_make_the_run_of_one_process_which_opens_without_torchrec(dataset, alone, tmp_path):
    command = [sys.executable, "-m", "crossrank", "train", str(dataset.path), "--into", str(tmp_path / "run")]
    result = subprocess.run(
        [*command, *SETS, "--workers", "2", "--json"], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["rows"] == dataset.num_rows["test"]  # the first process alone has printed
    run = Run.open(tmp_path / "run")
    assert_same(run, alone)
    files = {path.relative_to(alone.path) for path in alone.path.rglob("*") if "checkpoint" not in path.parts}
    found = {path.relative_to(run.path) for path in run.path.rglob("*") if "checkpoint" not in path.parts}
    assert found - files == {Path("report.html")}  # which the command writes
    assert run.info.keys() == alone.info.keys()
    without = f"""
import sys
sys.modules["torchrec"] = sys.modules["fbgemm_gpu"] = None
from crossrank.evaluation.evaluate import evaluate
from crossrank.runs import Run
print(evaluate(Run.open({str(run.path)!r}), {str(dataset.path)!r})["logloss"])
"""
    opened = subprocess.run(
        [sys.executable, "-c", without], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert float(opened.stdout) == pytest.approx(run.report["test"]["logloss"], abs=1e-6)


def test_after_kill_9_mid_epoch_torchrun_goes_on_and_no_row_is_repeated_or_lost(dataset, alone, tmp_path):
    seen = tmp_path / "seen"
    seen.mkdir()
    result = disturbed(
        dataset, tmp_path / "run", environment={"KILL_AT": "18", "SEEN": str(seen)}, restarts=1
    )  # an epoch has 13 steps; the last evaluation was after the 15th
    assert "exitcode: -9" in result.stderr
    assert_same(Run.open(tmp_path / "run"), alone)
    steps = collections.defaultdict(dict)
    for path in seen.iterdir():
        attempt, rank, number = map(int, path.name.split("."))
        steps[number].setdefault(attempt, {})[rank] = path.read_text().splitlines()
    assert sorted(steps) == list(range(1, 40))
    assert {number for number, attempts in steps.items() if 1 in attempts} == set(range(16, 40))
    learned = collections.Counter(row for one in steps.values() for rows in one[max(one)].values() for row in rows)
    split = dataset.train.categorical
    assert learned == collections.Counter({row: 3 * n for row, n in collections.Counter(
        " ".join(map(str, ids)) for ids in np.asarray(split).tolist()
    ).items()})  # fmt: skip


def test_what_four_processes_saved_goes_on_with_two_and_with_one(dataset, alone, tmp_path):
    stopped = disturbed(dataset, tmp_path / "four", environment={"STOP_AFTER": "15"}, processes=4, check=False)
    assert stopped.returncode != 0
    assert is_interrupted(tmp_path / "four")
    for processes in (2, 1):
        into = tmp_path / f"then-{processes}"
        shutil.copytree(tmp_path / "four.partial", tmp_path / f"then-{processes}.partial")
        disturbed(dataset, into, "--resume", environment={}, processes=processes)
        assert_same(Run.open(into), alone)


def test_a_lost_worker_ends_the_attempt_with_a_message_and_resume_goes_on(dataset, alone, tmp_path):
    into = tmp_path / "run"
    words = ["train", str(dataset.path), "--into", str(into), *SETS, "--workers", "2"]
    command = [sys.executable, "-m", "crossrank", *words]
    running = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while not is_interrupted(into) and running.poll() is None:
        time.sleep(0.05)
    numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    second = next(number for number in numbers if _is_worker(number, running.pid))
    os.kill(second, signal.SIGKILL)
    _, said = running.communicate(timeout=200)
    assert running.returncode == 2
    assert "error: All 2 workers must stay alive; worker 1 ended with signal 9 (SIGKILL)." in said
    assert "--resume" in said
    subprocess.run([*command, "--resume"], env=ENVIRONMENT, check=True, capture_output=True)
    assert_same(Run.open(into), alone)


def _is_worker(pid, parent):
    """Whether a process is the second worker of a command."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return int(status["PPid"]) == parent and "RANK=1" in Path(f"/proc/{pid}/environ").read_text().split("\0")
    except OSError:
        return False


@pytest.fixture(scope="module")
def wide_dataset(clicks, tmp_path_factory):
    """The same rows with a table of 64 MB."""
    from crossrank.data.generators.demo import schema
    from crossrank.data.prepare import prepare
    from crossrank.schema import Categorical, Schema

    columns = [Categorical(name="item", hash_size=250_000), Categorical(name="hour")]
    return prepare(clicks, Schema(columns, schema().label), tmp_path_factory.mktemp("wide") / "dataset")


def test_a_table_over_one_processs_memory_trains_when_two_share_it(wide_dataset, tmp_path):
    words = [
        "--set",
        "model.name=dnn",
        "--set",
        "model.embedding.dim=64",
        "--set",
        "training.placement={all='row-wise'}",
    ]
    memory = {"MEMORY": str(8 * 250_000 * 64 * 4)}  # weights, m, v, average, the best ones; and copies to write
    words += ["--set", "training.max_steps=6"]
    one = disturbed(wide_dataset, tmp_path / "one", *words, environment=memory, processes=1, check=False)
    assert one.returncode != 0
    assert "allocate" in one.stderr or "MemoryError" in one.stderr
    disturbed(wide_dataset, tmp_path / "two", *words, environment=memory, processes=2)
    assert Run.open(tmp_path / "two").report["training"]["steps"] == 6
