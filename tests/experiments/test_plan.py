"""A plan against arithmetic by hand, against what the engines keep, and against what was measured."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import resource
import time

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from crossrank.cli import app
from crossrank.data.generators.criteo_like import truth
from crossrank.errors import ConfigError
from crossrank.experiments.bench import traffic_of
from crossrank.experiments.planning import (
    DEVICES,
    LINKS,
    Cluster,
    Device,
    Table,
    Workload,
    calibrate,
    find_device,
    make_plan,
    planned_features,
)
from crossrank.experiments.planning.figure import draw_plans, plans_by_size
from crossrank.experiments.planning.placing import Part
from crossrank.experiments.planning.rates import read_rates, write_rates
from crossrank.experiments.planning.workload import row_bytes, row_traffic
from crossrank.models import build_model
from crossrank.nn import Features
from crossrank.schema import Feature
from crossrank.training import Config
from crossrank.training.device import processor_has_bfloat16
from crossrank.training.distributed.world import has_torchrec
from crossrank.training.lazy import LazyTable, Reads
from crossrank.training.rule import UpdateRule
from crossrank.training.settings import TrainingSettings

SLOW = Device(
    about="round numbers", kind="cpu", memory=1e9, float32=1e9, bfloat16=1e9, stream=1e8, row_stream=1e7,
    all_reduce=1e6, all_to_all=1e5, latency=1e-3, alone=3e-3, together=5e-3,
)  # fmt: skip
FEATURES = [Feature("user", "categorical", 1000), Feature("item", "categorical", 10), Feature("age", "numeric")]
DENSE = 9 * 8 + 8 + 8 + 1  # x0 has 4 + 4 + 1 numbers
BATCH = 8


def workload(features=FEATURES, *, rows=1000, counts=None, **training):
    model = {"name": "dnn", "embedding": {"dim": 4}, "deep": {"sizes": [8]}}
    config = Config.parse({"model": model, "training": {"batch_size": BATCH, **training}})
    return Workload.of(config, features, rows=rows, counts=counts)


def cluster(count=2, **options):
    return Cluster(**{"device": SLOW, "per_machine": count, "cores": 64, "memory": 1e9, **options})


def parts_of(work, *placements):
    """Both tables on two devices: the user's in one way, the item's in another."""
    found = []
    for table, placement, device in zip(work.tables, placements, (0, 1), strict=True):
        if placement == "table-wise":
            found.append(Part(table, placement, device, table.rows, 4, sent=4))
        elif placement == "row-wise":
            found += [Part(table, placement, each, table.rows / 2, 4, lookups=0.5, sent=4) for each in (0, 1)]
        elif placement == "column-wise":
            found += [Part(table, placement, each, table.rows, 2, sent=2) for each in (0, 1)]
        else:
            found += [Part(table, placement, each, table.rows, 4) for each in (0, 1)]
    return found


def test_a_model_is_counted_by_its_shapes():
    work = workload()
    assert work.flops == 2 * (9 * 8 + 8)
    assert work.dense == DENSE
    assert [(table.feature, table.rows, table.width) for table in work.tables] == [("user", 1000, 4), ("item", 10, 4)]


def test_activations_are_those_of_a_pass_over_rows():
    work = workload()
    model = build_model(work.config.model, FEATURES)

    def moved(rows):
        model.zero_grad()
        features = Features(torch.zeros(rows, 2, dtype=torch.int64), torch.zeros(rows, 1))
        found = traffic_of(lambda: model(features).sum().backward())
        return found.total - found.products

    assert work.activations == pytest.approx((moved(300) - moved(100)) / 200, rel=0.1)  # shapes are copied once more


@pytest.mark.parametrize("average_decay", [0.0, 0.999])
def test_a_row_takes_what_the_optimiser_keeps_of_it(average_decay):
    table = LazyTable(torch.zeros(50, 6), UpdateRule(TrainingSettings(average_decay=average_decay)))
    best = table.weight.clone()
    kept = sum(part.nbytes for part in (table.weight, table.state, table.last, table.owner, best))
    assert row_bytes(6, average_decay, "cpu") == kept / 50
    assert row_bytes(6, average_decay, "cuda") == (kept - table.owner.nbytes) / 50


def test_the_traffic_of_rows_grows_with_lookups_and_with_distinct_rows():
    lookup, change = row_traffic(16, 0.9999)

    def moved(lookups, distinct):
        table = LazyTable(torch.zeros(5000, 16), UpdateRule(TrainingSettings()))
        reads = Reads([table], lambda: 1)

        def step():
            reads.read(0, torch.arange(lookups) % distinct).sum().backward()
            [table.update(touched, step=2) for touched in reads.take()]

        return traffic_of(step).total

    written = 700 * 2 * 4 * 64  # by numpy, which is not counted: weight, m, v and average of 16 floats, in and out
    expected = 2000 * lookup + 700 * change
    assert moved(3000, 1000) - moved(1000, 300) + written == pytest.approx(expected, rel=1e-3)


def test_distinct_rows_are_those_of_draws():
    draw = np.random.default_rng(0)
    counts = np.array([900, 60, 30, 9, 1, 0])
    for known, share in ((None, np.full(6, 1 / 6)), (counts, counts / counts.sum())):
        seen = [len(set(draw.choice(6, 20, p=share))) for _ in range(4000)]
        assert Table("0_0", "user", 6, 4, known).distinct(20) == pytest.approx(np.mean(seen), rel=0.02)
    assert Table("0_0", "user", 1, 4).distinct(20) == 1
    assert Table("0_0", "user", 1, 4, np.array([5])).distinct(20) == 1
    assert Table("0_0", "user", 10**9, 4).distinct(1000) == pytest.approx(1000, rel=1e-5)


def test_one_device_computes_and_moves_memory_and_sends_nothing():
    work = workload()
    step = make_plan(work, cluster(1, cores=1)).step
    lookup, change = row_traffic(4, 0.9999)
    distinct = 1000 * (1 - (1 - 1 / 1000) ** 8) + 10 * (1 - (1 - 1 / 10) ** 8)
    assert step.compute == pytest.approx(8 * (3 * 160 / 1e9 + work.activations / 1e8))
    assert step.memory == pytest.approx((16 * lookup + distinct * change) / 1e7 + 36 * DENSE / 1e8)
    assert (step.all_to_all, step.all_reduce, step.overhead) == (0, 0, 3e-3)


@pytest.mark.parametrize(
    ("placements", "ids", "vectors", "kinds"),
    [
        # Of 8 rows 4 are the other's. It asks with an id (8) and a count (4), and gets 4 numbers of 4 bytes.
        (("table-wise", "table-wise"), 4 * 12, 4 * 16, 1),
        # Half of the ids come here; a sum of its rows goes back for each of the other's rows, of both tables.
        (("row-wise", "row-wise"), 4 * 2 * (4 + 4), 4 * 2 * 16, 1),
        # Each has half of both vectors, and gets every id.
        (("column-wise", "column-wise"), 4 * 2 * 12, 4 * 2 * 8, 1),
        (("table-wise", "row-wise"), 4 * (12 + 8), 4 * 2 * 16, 2),
        (("table-wise", "data-parallel"), 4 * 12, 4 * 16, 1),
    ],
)
def test_what_two_devices_send(placements, ids, vectors, kinds):
    work = workload()
    step = make_plan(work, cluster(), parts_of(work, *placements)).step
    replicated = 40 if "data-parallel" in placements else 0
    assert step.all_to_all == pytest.approx((ids + 2 * vectors) / 1e5 + 5 * kinds * 1e-3)
    assert step.all_reduce == pytest.approx(4 * (DENSE + replicated) / 1e6 + 1e-3)
    assert step.overhead == 5e-3


def test_what_two_devices_hold():
    work = workload()
    made = make_plan(work, cluster(), parts_of(work, "row-wise", "data-parallel"))
    row = 4 * 4 * 5 + 8 + 4  # weight, m, v, average, best; the last step; the place that speaks for it
    assert made.memory.tables == 500 * row + 10 * 4 * 4 * 6  # a gradient besides
    assert made.memory.dense == 4 * 6 * DENSE
    assert made.memory.checkpoint == 500 * 4 * 4 * 3
    touched = 1000 * (1 - (1 - 1 / 1000) ** 8) / 2
    vectors = 2 * 4 * (8 * 4 + 4 * 8)  # of all rows for its part, and of its rows from both parts; and their gradient
    assert made.memory.working == pytest.approx(4 * work.kept + vectors + touched * 4 * 4 * 4)
    assert made.memory.total == made.memory.tables + made.memory.dense + made.memory.checkpoint


def test_machines_share_what_lies_between_them():
    link = dataclasses.replace(LINKS["ethernet-10"], rate=1e3, latency=0.0)
    work = workload(batch_size=16)
    both = Cluster(device=SLOW, machines=2, per_machine=2, link=link, cores=64, memory=1e9)
    assert both.exchange(900, 1e5) == pytest.approx(600 / 500)  # two of three others are outside, behind half a link
    assert both.reduce(800) == pytest.approx(2 * 3 / 4 * 800 / 500)
    assert dataclasses.replace(both, link=dataclasses.replace(link, for_each_device=True)).reduce(800) == pytest.approx(
        1.2
    )
    assert make_plan(work, both, []).step.all_reduce > make_plan(work, cluster(4), []).step.all_reduce


def test_processes_that_share_a_core_wait_for_each_other():
    work = workload()
    parts = parts_of(work, "table-wise", "table-wise")
    free, crowded = (make_plan(work, cluster(2, cores=cores), parts).step for cores in (2, 1))
    assert dataclasses.astuple(crowded) == pytest.approx([2 * part for part in dataclasses.astuple(free)])
    threads = make_plan(work, cluster(2, cores=8), parts).step
    assert threads.compute == pytest.approx(free.compute / 4)


def test_an_epoch_has_steps_of_which_the_last_is_short():
    made = make_plan(workload(rows=17), cluster(1, price=36.0, machines=1))
    assert made.epoch_seconds == 3 * made.step.total
    assert made.cost == pytest.approx(36 * made.epoch_seconds / 3600)
    assert made.dataset_bytes == 17 * 4 * (2 + 1 + 1)
    assert made.rows_per_second == 8 / made.step.total
    assert make_plan(workload(), cluster(1)).cost is None


@pytest.mark.skipif(has_torchrec(), reason="where TorchRec is absent; see tests/distributed")
def test_without_torchrec_each_device_gets_an_equal_share_and_the_plan_says_so():
    work = workload(batch_size=64)
    plans = [make_plan(work, cluster(count)) for count in (1, 2, 4, 8)]
    assert [plan.placed for plan in plans] == [True, False, False, False]
    sizes = [plan.memory.tables for plan in plans]
    assert sizes == pytest.approx([sizes[0] / count for count in (1, 2, 4, 8)])


def criteo(batch_size, **model):
    """The model of a benchmark, on the values that its rows were drawn from."""
    categories = truth().categories
    features = [Feature(one.name, "categorical", len(one.shares)) for one in categories]
    features += [Feature(f"I{i}", "numeric") for i in range(13)]
    config = Config.parse({"model": model, "training": {"batch_size": batch_size}})
    return Workload.of(config, features, rows=10**7, counts={one.name: one.shares for one in categories})


LARGE = {"embedding": {"dim": 39}, "cross": {"num_layers": 2}, "deep": {"sizes": [768, 768]}}
SMALL = {"embedding": {"dim": 10}, "cross": {"num_layers": 3}, "deep": {"sizes": [500, 500, 500]}}


@pytest.mark.parametrize(("batch_size", "milliseconds"), [(512, 0.195), (4096, 0.448), (65536, 4.32)])
def test_one_h200_is_planned_as_it_was_measured(batch_size, milliseconds):
    planned = make_plan(criteo(batch_size, **LARGE), Cluster(device=DEVICES["h200"]))
    assert 1e3 * planned.step.total == pytest.approx(milliseconds, rel=0.1)


@pytest.mark.skipif(not processor_has_bfloat16(), reason="the measured processor multiplies bfloat16")
@pytest.mark.parametrize(
    ("model", "batch_size", "rows"),
    [(LARGE, 512, 11606), (LARGE, 4096, 12944), (SMALL, 512, 37247), (SMALL, 4096, 51094)],
)
def test_two_cores_are_planned_as_they_were_measured(model, batch_size, rows):
    planned = make_plan(criteo(batch_size, **model), Cluster(device=DEVICES["cpu"], cores=2))
    assert planned.rows_per_second == pytest.approx(rows, rel=0.25)


def test_a_billion_rows_are_planned_in_seconds_and_without_memory():
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work = workload(planned_features(26, 13, [10**9]), rows=10**11)
    made = make_plan(work, Cluster(device=DEVICES["h200"]))
    assert made.weights == 4 * 10**9
    assert not make_plan(workload(planned_features(1, 0, [10**11])), Cluster(device=DEVICES["h200"])).fits
    assert time.perf_counter() - start < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KB


def test_a_vocabulary_is_that_of_all_features_or_of_each():
    assert [one.vocab_size for one in planned_features(3, 1, [10])] == [4, 3, 3, 0]
    assert [one.vocab_size for one in planned_features(2, 0, [7, 5])] == [7, 5]
    assert [one.name for one in planned_features(1, 1, [7])] == ["C1", "I1"]
    assert len(planned_features(0, 3, [10])) == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: planned_features(3, 0, [1, 2]), "one for each of 3 features; got 2 numbers"),
        (lambda: planned_features(3, 0, [2]), "must have at least one value; got 2 values"),
        (lambda: planned_features(-1, 0, [2]), "counted from 0 on; got -1"),
        (lambda: workload(rows=0), "at least one row; got 0"),
        (lambda: workload([]), "must have features; got none"),
        (lambda: workload(planned_features(1, 0, [2**62])), "sizes must be numbers that torch can count"),
        (lambda: cluster(0), "devices in a machine must be at least 1; got 0"),
        (lambda: cluster(machines=0), "machines must be at least 1; got 0"),
        (lambda: cluster(machines=2), "2 machines must be connected.*--interconnect infiniband-400"),
        (lambda: cluster(cores=0), "at least one core; got 0"),
        (lambda: cluster(price=-1.0), "price of a machine must be a number from 0 on; got -1.0"),
        (lambda: cluster(memory=math.nan), "memory of a machine must be a number from 0 on; got nan"),
        (lambda: cluster(10**9), "4,096 devices at most; got 1,000,000,000"),
        (lambda: make_plan(workload(), cluster(3)), "multiple of the number of devices, 3; got 8.*batch_size=9"),
        (lambda: find_device("h20"), "--device must be one of.*got 'h20'. Did you mean 'h200'"),
        (lambda: dataclasses.replace(SLOW, stream=0.0), "'stream' must be positive; got 0.0"),
    ],
)
def test_what_cannot_be_planned_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_rates_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "rates.json"
    with pytest.raises(ConfigError, match=r"must have been measured.*plan --calibrate"):
        find_device("here", path)
    write_rates(path, SLOW)
    assert find_device("here", path) == SLOW
    whole = json.loads(path.read_text())
    for wrong, message in (
        ({**whole, "stream": "fast"}, "'stream' must be a number; got 'fast'"),
        ({**whole, "stream": -1.0}, "'stream' must be positive; got -1.0"),
        ({**whole, "speed": 1.0}, "'speed' is not a setting"),
        ({"kind": "cpu"}, "must be given"),
    ):
        path.write_text(json.dumps(wrong))
        with pytest.raises(ConfigError, match=message):
            read_rates(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"readable JSON.*plan --calibrate"):
        read_rates(path)


@pytest.mark.slow
def test_this_machine_is_measured_and_planned_with(tmp_path):
    path = tmp_path / "rates.json"
    device = calibrate(path)
    assert find_device("here", path) == device
    assert device.cores >= 1
    assert math.isfinite(make_plan(workload(), Cluster(device=device, cores=device.cores)).step.total)
    assert list(tmp_path.iterdir()) == [path]


def test_the_figure_has_a_bar_for_each_number_of_devices_that_fits(tmp_path):
    work = workload(batch_size=64)
    roomy = cluster(8)
    assert [plan.cluster.num_devices for plan in plans_by_size(work, roomy)] == [1, 2, 4, 8]
    narrow = dataclasses.replace(roomy, memory=1e6)
    assert all(plan.fits for plan in plans_by_size(work, narrow))
    for name in ("plan.svg", "plan.png"):
        draw_plans(plans_by_size(work, roomy), tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    with pytest.raises(ConfigError, match=r"ends in \.svg or \.png"):
        draw_plans(plans_by_size(work, roomy), tmp_path / "plan.pdf")
    with pytest.raises(ConfigError, match="that fits into memory; got none"):
        draw_plans([], tmp_path / "plan.svg")


def plan(*words, code=0):
    done = CliRunner().invoke(app, ["plan", *map(str, words)], env={"NO_COLOR": "1", "COLUMNS": "120"})
    assert done.exit_code == code, done.output
    return done


def test_the_command_tells_memory_placement_step_time_and_cost():
    shown = plan("--rows", "1e9", "--vocabulary", "10e6", "--per-machine", 1, "--price", 10).stdout
    for words in ("10,000,000 embedding rows", "H200 SXM", "memory of the fullest device", "one device", "all-to-all"):
        assert words in shown
    assert re.search(r"rows/s; an epoch of 1,000,000,000 rows \(160.0 GB\) takes [\d.]+ \w+, cost [\d.]+", shown)


def test_the_command_answers_in_json(dataset, tmp_path):
    figure = tmp_path / "plan.svg"
    options = ["--per-machine", 2, "--set", "training.batch_size=64", "--json", "--figure", figure]
    answer = json.loads(plan(dataset.path, "--device", "cpu", *options).stdout)
    assert answer["rows"] == len(dataset.train)
    assert answer["batch_size"] == 64
    parts = ["compute", "memory", "all_to_all", "all_reduce", "overhead"]
    assert answer["step_seconds"]["total"] == pytest.approx(sum(answer["step_seconds"][part] for part in parts))
    assert {one["feature"] for one in answer["placement"]} == {
        feature.name for feature in dataset.features if feature.kind != "numeric"
    }
    assert figure.exists()


@pytest.mark.skipif(has_torchrec(), reason="where TorchRec is absent")
def test_the_command_says_where_torchrec_is_missing_and_what_to_do():
    done = plan("--per-machine", 2)
    assert "TorchRec is not installed" in done.stderr
    assert "many-machines.md" in done.stderr


def test_the_command_warns_where_memory_is_too_small():
    assert "warning: a device has 141.0 GB" in plan("--vocabulary", "1e11", "--per-machine", 1).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rows", "many"], "whole number, such as 45_000_000 or 100e9; got 'many'"),
        (["--rows", "1.5"], "got '1.5'"),
        (["--rows", "1e400"], "got '1e400'"),
        (["--vocabulary", "5,"], "got ''"),
    ],
)
def test_numbers_are_written_in_any_of_the_usual_ways(words, message):
    assert message in re.sub(r"[\s│]+", " ", plan(*words, code=2).stderr)


def test_a_dataset_has_its_own_features(dataset):
    with pytest.raises(ConfigError, match="a prepared dataset, which has its features"):
        CliRunner().invoke(app, ["plan", str(dataset.path), "--features", "3"], catch_exceptions=False)
    with pytest.raises(ConfigError, match=r"one model with one loss.*model.ensemble=2"):
        CliRunner().invoke(app, ["plan", "--set", "model.ensemble=2"], catch_exceptions=False)
