"""``crossrank train … --workers N``: the same command in N processes of this machine, through torch's elastic agent."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from crossrank.errors import quietly
from crossrank.training.distributed.world import ALONE, given_up, need_torchrec

BAD_INPUT = 2  # the exit status of a command that has said what is wrong


def run_workers(words: Sequence[str], *, workers: int, into: Path) -> int:
    """Run a command of crossrank in several processes, to its end; returns its exit status.

    Args:
        words: the command, without the program's name.
        workers: how many.
        into: the run folder that it makes.

    Raises:
        RunError: where one of the processes is lost, which ends all.
    """
    need_torchrec()
    threads = max((os.cpu_count() or 1) // workers, 1)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # or each would take all cores
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=workers, rdzv_backend="c10d", rdzv_endpoint="localhost:0",
        run_id=f"crossrank-{os.getpid()}", max_restarts=0, monitor_interval=0.2,
    )  # fmt: skip
    try:
        with quietly(logging.ERROR):
            elastic_launch(config, sys.executable)("-m", "crossrank", *words)
    except ChildFailedError as error:
        failures = [one for one in error.failures.values() if one.exitcode not in (ALONE, -signal.SIGTERM)]
        failure = min(failures or error.failures.values(), key=lambda one: one.timestamp)  # the others followed it
        if failure.exitcode == BAD_INPUT:
            return BAD_INPUT
        how = f"signal {-failure.exitcode}" if failure.exitcode < 0 else f"status {failure.exitcode}"
        if -failure.exitcode in {*signal.Signals}:
            how += f" ({signal.Signals(-failure.exitcode).name})"
        raise given_up(into, workers, f"worker {failure.local_rank} ended with {how}") from None
    return 0
