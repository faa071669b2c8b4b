"""The processes of a training: who they are, and what they tell each other."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import gc
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from crossrank.errors import ConfigError, CrossRankError, RunError
from crossrank.runs.lifecycle import is_interrupted

PATIENCE = datetime.timedelta(hours=6)  # with the first process, which measures and writes while the others wait

ALONE = 3  # the exit status of a process whose others have gone


class MissingTorchRecError(CrossRankError):
    """TorchRec is needed and not installed."""

    def __init__(self) -> None:
        super().__init__(
            "Training on several processes needs TorchRec; it is not installed.",
            hint="How to install it stands in docs/guides/many-machines.md.",
        )


@dataclasses.dataclass(frozen=True)
class World:
    """The processes, seen from one of them."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this is the one that prints and writes."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def gather(self, values: Tensor) -> Tensor:
        """What every process has, of one shape, one after the other: (N, ...) -> (size · N, ...)."""
        if self.size == 1:
            return values
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values.contiguous())
        return torch.cat(parts)

    def swap(self, sent: Tensor, given: list[int], taken: list[int]) -> tuple[Tensor, Callable[[], object]]:
        """So many numbers for each process, and what comes from each, one after the other, once the call has waited."""
        if self.size == 1:
            return sent, lambda: None
        received = sent.new_empty(sum(taken))
        work = dist.all_to_all_single(received, sent, taken, given, async_op=True)
        return received, work.wait

    def wait(self) -> None:
        """Until all are here."""
        dist.barrier()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Inside, each process does something, and none goes on before all are done; all end where one failed."""
        failed = torch.ones(1, device=self.device)
        try:
            yield
            failed.zero_()
        finally:
            with contextlib.suppress(RuntimeError):  # another process has gone
                self.sum(failed)
        if failed.item():
            raise SystemExit(2)  # whoever failed has said why


def given_up(into: Path, workers: int, evidence: str) -> RunError:
    """What to say where workers were lost that were making a run folder."""
    hint = "Give the same command with --resume to go on from the last evaluation."
    hint = hint if is_interrupted(into) else "There was no evaluation yet to go on from: train anew."
    return RunError(f"All {workers} workers must stay alive; {evidence}.", hint=hint)


def has_torchrec() -> bool:
    return importlib.util.find_spec("torchrec") is not None


def need_torchrec() -> None:
    """
    Raises:
        MissingTorchRecError: where it is not installed.
    """
    if not has_torchrec():
        raise MissingTorchRecError


@contextlib.contextmanager
def joined(device: str) -> Iterator[World]:
    """Take part, under torchrun or Ray Train: NCCL where steps are made on GPUs, gloo on processors.

    Raises:
        ConfigError: outside torchrun.
        MissingTorchRecError: where it is not installed.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise ConfigError(
            "training.distributed=true needs processes that know of each other; RANK and WORLD_SIZE are not set.",
            hint="Train with --workers 2, or under torchrun --nproc-per-node 2 -m crossrank train …",
        )
    need_torchrec()
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")  # TorchRec calls what torch has renamed
    place = torch.device(device)
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(place)
    made = dist.is_initialized()  # by Ray Train, which ends it too
    if not made:
        store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"attempt-{attempt}", store)  # the addresses of processes that died are still in it
        backend = "nccl" if place.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    try:
        yield World(dist.get_rank(), dist.get_world_size(), place)
        dist.barrier()  # or one that is quick to leave breaks the others' last words
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        print(f"process {os.environ['RANK']} ends: another one has gone", file=sys.stderr)
        raise SystemExit(ALONE) from None
    finally:
        if not made:
            gc.collect()  # else circles hold the group, and threads of it, until after Python has ended: SIGABRT
            dist.destroy_process_group()
