"""Ray, where there is one: a cluster reads the files of a table, tries settings, trains.

``RAY_ADDRESS`` says where the cluster is; where it is not set, a Ray of this machine alone is started, and ended
afterwards. Every machine of a cluster needs crossrank, the same version, and the same paths.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeAlias

from crossrank.errors import CrossRankError, RunError, first_line

EngineName: TypeAlias = Literal["local", "ray"]


class MissingRayError(CrossRankError):
    """Ray is needed and not installed."""

    def __init__(self) -> None:
        super().__init__(
            "The engine 'ray' needs Ray; it is not installed.", hint="Run: pip install 'ray[train]==2.60.0'"
        )


class Tasks:
    """Work that a cluster does; what it makes stays there until it is asked for."""

    @property
    def width(self) -> int:
        """How many tasks the cluster runs at once."""
        import ray

        return max(int(ray.cluster_resources().get("CPU", 1)), 1)

    def put(self, value: Any) -> Any:
        """A value for many tasks, sent once."""
        import ray

        return ray.put(value)

    def start(self, work: Callable[..., Any], *args: Any, parts: int | None = None, gpus: int = 0) -> Any:
        """Begin ``work(*args)``; returns what stands for its result, or for each of its parts."""
        import ray

        task = ray.remote(work).options(num_returns=parts or 1, num_gpus=gpus)
        made = task.remote(*args)
        return [made] if parts == 1 else made

    def get(self, made: Any) -> Any:
        """What something stands for.

        Raises:
            CrossRankError: the one that the task raised.
            RunError: where the task was lost.
        """
        import ray

        try:
            return ray.get(made)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, CrossRankError):
                raise error.cause from None
            raise
        except ray.exceptions.RayError as error:
            raise lost(error) from None

    def map(self, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """``work(item)`` of each item, in order; with a GPU for each where the cluster has any."""
        import ray

        gpus = int(ray.cluster_resources().get("GPU", 0) >= 1)
        yield from map(self.get, [self.start(work, item, gpus=gpus) for item in items])


def lost(error: BaseException) -> RunError:
    """What to say where the cluster failed."""
    return RunError(
        f"The cluster must finish what it began; {first_line(error)}.",
        hint="Look at it with `ray status`, and at its logs, and give the command again.",
    )


@contextlib.contextmanager
def cluster(cpus: int = 1) -> Iterator[Tasks]:
    """Connect to the cluster, or start a Ray of this machine's own.

    Args:
        cpus: that such a Ray must count, even if the machine has fewer.

    Raises:
        MissingRayError: where Ray is not installed.
        RunError: where there is no cluster at ``RAY_ADDRESS``.
    """
    if importlib.util.find_spec("ray") is None:
        raise MissingRayError
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would send them to its makers
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # that of one task is told; others may have failed too
    import ray

    if ray.is_initialized():  # by whoever called
        yield Tasks()
        return
    with contextlib.ExitStack() as stack:
        own: dict[str, Any] = {}
        address = os.environ.get("RAY_ADDRESS")
        try:
            if address:
                _knock(address)
            else:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
                own = {"address": "local", "include_dashboard": False, "_temp_dir": folder}
                own["num_cpus"] = max(os.cpu_count() or 1, cpus)
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **own)
        except (OSError, RuntimeError, ValueError) as error:
            place = f"answer at RAY_ADDRESS={address}" if address else "start on this machine"
            raise RunError(
                f"Ray must {place}; {first_line(error)}.",
                hint="RAY_AUTH_MODE must be that of the cluster. Or unset RAY_ADDRESS for a Ray of this machine alone."
                if address
                else "It opens sockets in the folder for temporary files: TMPDIR must be a short path.",
            ) from None
        stack.callback(ray.shutdown)
        yield Tasks()


def _knock(address: str) -> None:
    """See whether somebody is there: Ray itself would knock for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()
