"""Processes that train together."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from torchrun import torchrun

collect_ignore = ["disturbed.py", "workers.py"]  # programs of processes
WORKERS = Path(__file__).parent / "workers.py"


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
