"""Commands in several processes, started as torchrun starts them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

ENVIRONMENT = {**os.environ, "PYTHONFAULTHANDLER": "1", "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}
WITHOUT = importlib.util.find_spec("torchrec") is None
NEEDS = [pytest.mark.slow, pytest.mark.skipif(WITHOUT, reason="TorchRec is installed by `make test-distributed`")]


def torchrun(*words, processes=2, check=True, environment=None):
    """Run something in several processes; returns how it ended."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**ENVIRONMENT, **(environment or {})}
    result = subprocess.run([*command, *map(str, words)], env=environment, capture_output=True, text=True, check=False)
    assert not check or result.returncode == 0, result.stdout + result.stderr
    return result
