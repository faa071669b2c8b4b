"""What is planned is what is trained: TorchRec's placement, and the bytes that each process keeps."""

from __future__ import annotations

import time

import pytest
from torchrun import NEEDS

from crossrank.data import EncodedDataset
from crossrank.errors import ConfigError
from crossrank.experiments.planning import DEVICES, LINKS, Cluster, Workload, make_plan, planned_features
from crossrank.experiments.planning.calibrate import together
from crossrank.experiments.planning.estimate import placements
from crossrank.models.build import memory
from crossrank.training import Config

pytestmark = [*NEEDS, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]


def on_gpus(machines, *, rows=10**9, **training):
    config = Config.parse({"model": {"embedding": {"dim": 64}}, "training": {"batch_size": 65536, **training}})
    work = Workload.of(config, planned_features(26, 13, [rows]), rows=10**11)
    return make_plan(
        work, Cluster(device=DEVICES["h200"], machines=machines, per_machine=8, link=LINKS["infiniband-400"])
    )


def test_the_plan_is_what_processes_hold(dataset, at_work):
    asked = [{}, *({"all": one} for one in ("table-wise", "row-wise", "column-wise", "data-parallel"))]
    settings = [
        {
            "model": {"embedding": {"dim": 4}, "deep": {"sizes": [8]}},
            "training": {"batch_size": 64, "placement": placement},
        }
        for placement in asked
    ]
    jobs = [{"job": "held", "dataset": str(dataset.path), "values": values} for values in settings]
    cluster = Cluster(device=DEVICES["cpu"], per_machine=2, cores=2, memory=float(memory()))
    for values, found in zip(settings, at_work(jobs, processes=2), strict=True):
        work = Workload.of(Config.parse(values), EncodedDataset.open(dataset.path).features, rows=len(dataset.train))
        made = make_plan(work, cluster)
        assert made.placed
        assert {one["feature"]: one["placement"] for one in placements(made.parts)} == found[0]["placement"]
        assert made.memory.tables == max(one["bytes"] for one in found)


def test_a_billion_rows_are_placed_in_seconds():
    start = time.perf_counter()
    made = on_gpus(2)
    assert time.perf_counter() - start < 60
    assert made.placed
    assert made.fits
    assert sum(one["rows"] for one in placements(made.parts)) == 10**9
    least = 64 * 10**9 * 4 * 5  # five numbers for each weight
    assert least / 16 <= made.memory.tables <= 1.25 * least / 16


def test_small_tables_of_processors_are_not_divided_by_rows():
    config = Config.parse({"model": {"embedding": {"dim": 16}}, "training": {"batch_size": 2048}})
    work = Workload.of(config, planned_features(26, 13, [157_770]), rows=10**6)
    made = make_plan(work, Cluster(device=DEVICES["cpu"], per_machine=2, cores=2, memory=8e9))
    assert {one["placement"] for one in placements(made.parts)} <= {"table-wise", "data-parallel"}


def test_more_devices_hold_less_each():
    sizes = [on_gpus(machines).memory.total for machines in (2, 4, 8)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[2] < sizes[0] / 3


def test_tables_that_fit_nowhere_are_refused():
    with pytest.raises(
        ConfigError, match=r"must fit into the memory of 8 processes; TorchRec's planner says.*more or la"
    ):
        on_gpus(1)


def test_a_placement_that_a_person_decides_is_planned_with():
    made = on_gpus(1, rows=10**6, placement={"all": "row-wise", "C1": "data-parallel"})
    where = {one["feature"]: one["placement"] for one in placements(made.parts)}
    assert where == {"C1": "data-parallel", **{f"C{i}": "row-wise" for i in range(2, 27)}}
    with pytest.raises(ConfigError, match="must name embedded features, or 'all'; got 'C27'"):
        on_gpus(1, placement={"C27": "row-wise"})


def test_a_step_of_hardly_any_rows_is_measured_among_processes() -> None:
    found = together(2)
    assert set(found) == {"all_reduce", "all_to_all", "latency", "step"}
    assert found["step"] > found["latency"] > 0
