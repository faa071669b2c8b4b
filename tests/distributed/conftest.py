"""Processes that train together, started as torchrun starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
WORKERS = Path(__file__).parent / "workers.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}


def torchrun(*words, processes=2, check=True, environment=None):
    """Run something in several processes; returns how it ended."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**ENVIRONMENT, **(environment or {})}
    result = subprocess.run(
        [*command, *map(str, words)], env=environment, capture_output=True, text=True, check=False
    )
    assert not check or result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.fixture(scope="session")
def at_work(tmp_path_factory):
    """A function that has jobs of workers.py done by some processes; for each job, what each process returned."""

    def work(jobs, *, processes):
        folder = tmp_path_factory.mktemp("jobs")
        (folder / "jobs.json").write_text(json.dumps(jobs))
        torchrun(WORKERS, folder / "jobs.json", folder, processes=processes)
        return [
            [json.loads((folder / f"{number}.{rank}.json").read_text()) for rank in range(processes)]
            for number in range(len(jobs))
        ]

    return work
