"""A few of the kills and faults that `make torture` goes through, of the commands that are typed most."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import crossrank

SCRIPT = Path(__file__).with_name("torture.py")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="faults are preloaded C, on Linux")
def test_kills_and_faults_lose_nothing_and_leave_nothing(tmp_path) -> None:
    commands = ["prepare", "prepare --overwrite", "train", "train --overwrite", "train --resume", "predict csv"]
    words = ["--cases", "36", "--jobs", "2", "--into", str(tmp_path / "torture"), "--only", *commands]
    environment = {**os.environ, "PYTHONPATH": str(Path(crossrank.__file__).parents[1])}
    ended = subprocess.run(
        [sys.executable, SCRIPT, *words], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "36 cases, 0 with violations" in ended.stdout
