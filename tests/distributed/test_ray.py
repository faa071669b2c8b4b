"""Ray does what this machine does by itself."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_runs import SETTINGS
from test_runs import assert_same as assert_same_run
from torchrun import NEEDS

from crossrank.data.prepare import prepare
from crossrank.errors import DataError, RunError
from crossrank.experiments.tune import tune
from crossrank.runs.lifecycle import is_interrupted, is_run
from crossrank.training import train

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from test_by_file import CLICK, assert_same, rows

WITHOUT = importlib.util.find_spec("ray") is None
pytestmark = [
    *NEEDS,
    pytest.mark.skipif(WITHOUT, reason="Ray is installed by `make test-distributed`"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]
SPACE = {
    "fixed": {"model": SETTINGS["model"], "training": {**SETTINGS["training"], "epochs": 1}},
    "search": {"training": {"learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}}},
}


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    """A Ray of this machine, which what is called finds, and leaves as it is."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["STARTED_BY"] = str(tmp_path_factory.getbasetemp())  # its processes inherit it
    import ray

    small = {"num_cpus": 2, "object_store_memory": 150_000_000}
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:  # a short path
        ray.init(address="local", include_dashboard=False, log_to_driver=False, _temp_dir=folder, **small)
        yield ray
        ray.shutdown()
    del os.environ["STARTED_BY"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clicks")
    for number, count in enumerate((66_000, 0, 2_000, 3_000)):
        rows(count, number).write_csv(folder / f"{number}.csv")
    return folder


def test_a_folder_prepared_on_ray_is_that_of_one_process_byte_for_byte(ray, files, tmp_path, monkeypatch):
    prepare(files, CLICK, tmp_path / "local")
    monkeypatch.chdir(files.parent)  # the tasks are somewhere else
    prepare(files.name, CLICK, tmp_path / "ray", engine="ray")
    assert_same(tmp_path / "ray", tmp_path / "local")
    assert ray.is_initialized()


def test_an_error_in_a_task_is_the_one_that_this_machine_would_raise(ray, tmp_path):
    (tmp_path / "files").mkdir()
    for number in range(2):
        frame = rows(100, number)
        frame.with_columns(click=frame["click"] + number).write_csv(tmp_path / "files" / f"{number}.csv")
    with pytest.raises(DataError) as local:
        prepare(tmp_path / "files", CLICK, tmp_path / "local")
    with pytest.raises(DataError) as far:
        prepare(tmp_path / "files", CLICK, tmp_path / "ray", engine="ray")
    assert (str(far.value), far.value.hint) == (str(local.value), local.value.hint)
    assert not (tmp_path / "ray").exists()


def test_a_search_on_ray_finds_what_it_finds_in_one_process(ray, dataset, tmp_path):
    asked = {"space": SPACE, "trials": 3, "stages": 1, "finalists": 1, "seeds": 2, "say": lambda text: None}
    tune(dataset, tmp_path / "one", jobs=1, **asked)
    tune(dataset, tmp_path / "ray", engine="ray", **asked)
    for name in ("leaderboard.json", "leaderboard.md", "result.json"):
        assert (tmp_path / "ray" / name).read_text() == (tmp_path / "one" / name).read_text()


def workers_of(owner):
    """The processes of a training on the Ray that a test has started."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            mine = f"STARTED_BY={owner}" in (place / "environ").read_text().split("\0")
            if mine and "RayTrainWorker" in (place / "cmdline").read_text():
                found.append(int(place.name))
        except (OSError, UnicodeDecodeError):
            continue
    return found


def test_a_lost_worker_is_started_again_and_the_training_ends_as_if_nothing_had_happened(ray, dataset, tmp_path):
    from crossrank.training.distributed.on_ray import train_on_ray

    alone = train(dataset, into=tmp_path / "alone", config=SETTINGS)
    config = {**SETTINGS, "training": {**SETTINGS["training"], "distributed": True}}
    into = tmp_path / "ray"
    with ThreadPoolExecutor() as pool:
        run = pool.submit(train_on_ray, dataset, into=into, config=config, workers=2)
        while not is_interrupted(into) and not run.done():
            time.sleep(0.01)
        before = workers_of(os.environ["STARTED_BY"])
        os.kill(max(before), signal.SIGKILL)
        assert len(before) == 2
        assert not is_run(into)
        while not (others := set(workers_of(os.environ["STARTED_BY"])) - set(before)) and not run.done():
            time.sleep(0.01)
        assert others  # which have gone on
        assert_same_run(run.result(), alone)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "ray"]


def test_what_is_refused_is_not_tried_again(ray, dataset, tmp_path):
    from crossrank.training.distributed.on_ray import train_on_ray

    config = {"training": {"distributed": True}, "model": {"ensemble": 2}}
    with pytest.raises(RunError, match=r"model.ensemble=2.*Leave model.ensemble out"):
        train_on_ray(dataset, into=tmp_path / "run", config=config, workers=1)
    with pytest.raises(RunError, match="must have 3 processors"):
        train_on_ray(dataset, into=tmp_path / "run", config=config, workers=3)
    assert not list(tmp_path.iterdir())
