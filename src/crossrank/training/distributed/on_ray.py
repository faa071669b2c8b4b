"""``crossrank train … --engine ray --workers N``: Ray Train starts the processes, and starts them again if one is lost.

Each of them does what it does under torchrun. Checkpoints are those in the run folder, from which a later attempt goes
on; Ray Train is given none.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any

from crossrank.data import EncodedDataset
from crossrank.errors import ConfigError, CrossRankError, RunError, first_line
from crossrank.files import read_json, write_json, writing
from crossrank.folders import recover
from crossrank.ray import cluster
from crossrank.runs import Run
from crossrank.runs.lifecycle import check_free
from crossrank.training.distributed.world import PATIENCE, given_up, need_torchrec
from crossrank.training.train import train

RESTARTS = 3
BEGUN, REFUSED = "begun", "refused.json"


def train_on_ray(
    data: Any,
    *,
    into: Path,
    config: Mapping[str, Any],
    workers: int,
    resume: bool = False,
    overwrite: bool = False,
    **options: Any,
) -> Run:
    """The same as :func:`crossrank.training.train` of ``training.distributed``, in processes of a cluster.

    Args:
        data: a prepared dataset; every machine opens its path.
        into: the run folder, on a disk that all machines share.
        config: settings.
        workers: how many processes, each with a processor, and a GPU where there are enough.
        resume: as there.
        overwrite: as there.
        **options: ``seed`` and ``track``, as there.

    Raises:
        RunError: where the cluster has too few processors, or workers are lost again and again.
        MissingRayError: where Ray is not installed.
    """
    if not isinstance(data, EncodedDataset):
        raise ConfigError(
            "The engine 'ray' must have a prepared dataset, which every machine can open; got a table.",
            hint="Make one with: crossrank prepare TABLE --into DATASET --engine ray",
        )
    need_torchrec()
    recover(into)
    check_free(into, resume=resume, overwrite=overwrite)
    with cluster(cpus=workers), writing(into, RunError):
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer
        from ray.train.v2.api.exceptions import TrainingFailedError

        there = ray.cluster_resources()
        if there.get("CPU", 0) < workers:
            raise RunError(f"The cluster must have {workers} processors for as many workers; it has {there['CPU']:g}.")
        into.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{into.name}-", dir=into.parent) as folder:
            on_gpus = config.get("training", {}).get("device") != "cpu" and there.get("GPU", 0) >= workers
            told = {"into": str(into.absolute()), "config": config, "resume": resume, "overwrite": overwrite, **options}
            trainer = TorchTrainer(
                _work,
                train_loop_config={"data": str(data.path.absolute()), "folder": str(Path(folder).absolute()), **told},
                torch_config=TorchConfig(timeout_s=int(PATIENCE.total_seconds())),
                scaling_config=ScalingConfig(num_workers=workers, use_gpu=on_gpus),
                run_config=RunConfig(
                    name="ray",
                    storage_path=str(Path(folder).absolute()),
                    failure_config=FailureConfig(max_failures=RESTARTS),
                ),
            )
            try:
                _run(trainer.fit)
            except TrainingFailedError as error:
                rank, reason = next(iter(getattr(error, "worker_failures", {}).items()), (0, error))
                ended = f"after {RESTARTS} restarts worker {rank} ended: {first_line(reason)}"
                raise given_up(into, workers, ended) from None
            if (refused := Path(folder) / REFUSED).exists():
                why = read_json(refused)
                raise RunError(why["message"], hint=why["hint"])
    return Run.open(into)


def _run(fit: Any) -> None:
    """Beside the main thread, in which Ray would take Ctrl-C for itself, and end as if all were well."""
    done: Future[None] = Future()

    def work() -> None:
        try:
            fit()
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    thread = Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)  # a signal that another thread got is heard between two of them
    done.result()


def _work(told: dict[str, Any]) -> None:
    """What each process does, in each attempt."""
    import ray.train
    from ray.train.collective import broadcast_from_rank_zero

    folder, is_first = Path(told.pop("folder")), ray.train.get_context().get_world_rank() == 0
    again, refused = broadcast_from_rank_zero(((folder / BEGUN).exists(), (folder / REFUSED).exists()))
    if refused:
        return  # whoever was refused was not lost
    if is_first:
        (folder / BEGUN).touch()
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(int(again))
    try:
        train(told.pop("data"), **told, progress=False)
    except CrossRankError as error:
        if not again:
            write_json(folder / REFUSED, {"message": error.message, "hint": error.hint})
        raise
