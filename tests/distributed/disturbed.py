"""The command line in a process that is watched, limited or killed, as the environment says.

- SEEN: a folder; what each step learned from is written there, by attempt, process and step.
- KILL_AT: the step before which process 1 dies, in the first attempt.
- STOP_AFTER: the evaluation after which all processes stop.
- MEMORY: bytes of memory beyond what is used when training begins.
"""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

from crossrank.cli import main
from crossrank.training.distributed import checkpoint
from crossrank.training.distributed.engine import DistributedEngine

ATTEMPT, RANK = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")), int(os.environ["RANK"])
step, save, begin = DistributedEngine.step, checkpoint.save, DistributedEngine.__init__


def watched_step(self, share):
    number = self.optimizer.steps + 1
    if number == int(os.environ.get("KILL_AT", "-1")) and RANK == 1 and ATTEMPT == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if "SEEN" in os.environ:
        ids, _, _ = share.batch.features
        rows = [" ".join(map(str, row)) for row in ids.tolist()]
        Path(os.environ["SEEN"], f"{ATTEMPT}.{RANK}.{number}").write_text("\n".join(rows))
    return step(self, share)


def stopping_save(engine, folder, position, tensors):
    save(engine, folder, position, tensors)
    if position.step >= int(os.environ.get("STOP_AFTER", str(2**62))):
        engine.world.wait()
        os._exit(9)


def limited_begin(self, *args, **options):
    if "MEMORY" in os.environ:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        used = int(status["VmData"].split()[0]) * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (used + int(os.environ["MEMORY"]),) * 2)
    begin(self, *args, **options)


DistributedEngine.step = watched_step
DistributedEngine.__init__ = limited_begin
checkpoint.save = stopping_save
if "MEMORY" in os.environ:
    checkpoint.FILE_BYTES = 2**24
main()
