"""One, two and four processes take the steps of one, wherever the tables lie."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch
from torch.nn import functional as F
from torchrun import NEEDS

from crossrank.data import EncodedDataset
from crossrank.data.generators.demo import schema
from crossrank.data.prepare import prepare
from crossrank.schema import Schema
from crossrank.training.finish import seeded_model
from crossrank.training.loss import penalty
from crossrank.training.schedule import factors
from crossrank.training.settings import Config

pytestmark = NEEDS

PLACEMENTS = ("table-wise", "row-wise", "column-wise", "data-parallel")
TABLE_WISE = {"all": "table-wise"}
MIXED = {"all": "row-wise", "item": "table-wise", "hour": "data-parallel", "tags": "column-wise"}
VALUES = {
    "model": {"name": "dcn-v2", "embedding": {"dim": 4}, "deep": {"sizes": [8]}},
    "training": {
        "batch_size": 64, "epochs": 8, "max_steps": 200, "learning_rate": 0.01, "clip_norm": 0.2, "l2": 1e-4,
        "average_decay": 0.99, "table_decay": 0.05, "schedule": "cosine", "warmup_steps": 10,
        "table_learning_rate": 0.02,
    },
}  # fmt: skip


def placed(how, values=VALUES):
    training = {**values["training"], "placement": {"all": how} if isinstance(how, str) else how}
    return {**values, "training": training}


def textbook(dataset: EncodedDataset, values=VALUES):
    """The losses and the validation logits of Adam as it is taught, every row at every step, in float64."""
    config = Config.parse(values)
    training, model = config.training, seeded_model(config, dataset, 0).double()
    tables = [table.weight for table in model.tables()]
    others = [p for p in model.parameters() if not any(p is table for table in tables)]
    groups = [{"params": others, "lr": 0.01}, {"params": tables, "lr": 0.02}]
    adam, average = torch.optim.Adam(groups), [p.detach().clone() for p in [*others, *tables]]
    pace = torch.optim.lr_scheduler.LambdaLR(
        adam, lambda i: factors("cosine", total_steps=200, warmup_steps=10)[min(i, 199)]
    )
    losses, step = [], 0
    while step < 200:
        for batch in dataset.train.batches(training.batch_size, seed=0, epoch=step // 26):
            rows = F.binary_cross_entropy_with_logits(model(batch.features), batch.labels.double(), reduction="none")
            weights = torch.ones_like(rows) if batch.weights is None else batch.weights.double()
            loss = (rows * weights).sum() / weights.sum()
            adam.zero_grad()
            (loss + penalty(model, training.l2)).backward()
            norm = torch.cat([p.grad.flatten() for p in [*others, *tables]]).norm()
            for parameter in [*others, *tables]:
                parameter.grad *= min(1.0, training.clip_norm / (norm.item() + 1e-6))
            with torch.no_grad():
                for table in tables:
                    table *= 1 - adam.param_groups[1]["lr"] * training.table_decay
            adam.step()
            pace.step()
            step += 1
            decay = min(training.average_decay, (1 + step) / (10 + step))
            for mean, parameter in zip(average, [*others, *tables], strict=True):
                mean.lerp_(parameter.detach(), 1 - decay)
            losses.append(loss.item())
            if step == 200:
                break
    counts = {slot.name: dataset.encoder.counts(slot.name) for slot in model.layout.embedded}
    logits = []
    for weights in ([p.detach().clone() for p in [*others, *tables]], average):
        with torch.no_grad():
            for parameter, value in zip([*others, *tables], weights, strict=True):
                parameter.copy_(value)
        model.fill_untrained_rows(counts)
        logits.append(model.predict_logits(b.features for b in dataset.valid.batches(512)).numpy())
    return np.array(losses), *logits


@pytest.fixture(scope="module")
def expected(dataset):
    return textbook(dataset)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_any_number_of_processes_and_any_placement_give_the_textbooks_losses_and_answers(
    dataset, at_work, expected, processes
):
    losses, raw, averaged = expected
    ways = {1: ["table-wise"], 2: [*PLACEMENTS, MIXED], 4: ["table-wise", "row-wise", "data-parallel"]}[processes]
    precisions = [(how, True) for how in ways] + ([("row-wise", False)] if processes == 2 else [])
    jobs = [
        {"job": "curve", "dataset": str(dataset.path), "values": placed(how), "double": double}
        for how, double in precisions
    ]
    for job, ranks in zip(jobs, at_work(jobs, processes=processes), strict=True):
        for found in ranks:  # every process knows the loss of the whole batch
            bound = 1e-9 if job["double"] else 2e-3  # Adam turns float32's rounding into steps of a row's own
            assert np.abs(np.array(found["losses"]) - losses).max() < bound
            assert np.abs(np.array(found["raw"]) - raw).max() < (1e-6 if job["double"] else 2e-2)
            assert np.abs(np.array(found["averaged"]) - averaged).max() < (1e-6 if job["double"] else 2e-2)
            assert found["rows"] == 7 * 1601 + 18 * 64  # every row once an epoch, the last eighteen batches besides
            assert found["by_torchrec"]  # there are bags
            wanted = job["values"]["training"]["placement"]
            assert all(how == wanted.get(name, wanted["all"]) for name, how in found["placement"].items())


@pytest.fixture(scope="module")
def single(clicks, tmp_path_factory):
    own = schema()
    features = [column for column in own.features if column.name != "tags"]
    return prepare(clicks, Schema(features, own.label), tmp_path_factory.mktemp("single") / "dataset")


def test_where_every_row_has_one_id_of_a_feature_the_exchange_of_our_own_gives_the_textbooks_losses(single, at_work):
    widths = {**VALUES, "model": {**VALUES["model"], "embedding": {"dim": 4, "dims": {"hour": 2, "item": 6}}}}
    losses, raw, averaged = textbook(single, widths)
    mixed = {"all": "table-wise", "item": "column-wise", "user": "data-parallel"}
    for processes, ways in {1: ["table-wise"], 2: [*PLACEMENTS, mixed], 4: ["table-wise", "column-wise"]}.items():
        jobs = [
            {"job": "curve", "dataset": str(single.path), "values": placed(how, widths), "double": True} for how in ways
        ]
        for how, ranks in zip(ways, at_work(jobs, processes=processes), strict=True):
            for found in ranks:
                assert np.abs(np.array(found["losses"]) - losses).max() < 1e-9
                assert np.abs(np.array(found["raw"]) - raw).max() < 1e-6
                assert np.abs(np.array(found["averaged"]) - averaged).max() < 1e-6
                assert found["by_torchrec"] == (how == "row-wise")


def test_rows_that_weigh_differently_do_so_over_all_processes(clicks, at_work, tmp_path):
    own, draw = schema(), np.random.default_rng(0)
    weighted = clicks.with_columns(weight=pl.Series(draw.exponential(size=len(clicks))))
    dataset = prepare(weighted, Schema(own.features, own.label, weight="weight"), tmp_path / "weighted")
    job = {"job": "curve", "dataset": str(dataset.path), "values": placed("row-wise"), "double": True}
    for found in at_work([job], processes=2)[0]:
        assert np.abs(np.array(found["losses"]) - textbook(dataset)[0]).max() < 1e-9


@pytest.fixture(scope="module")
def grouped(clicks, tmp_path_factory):
    own = schema()
    features = [column for column in own.features if column.name != "user"]
    return prepare(clicks, Schema(features, own.label, group="user"), tmp_path_factory.mktemp("grouped") / "dataset")


def test_a_step_has_one_exchange_besides_the_tables_and_one_more_where_rows_are_compared(grouped, single, at_work):
    trainings = [{"batch_size": 64}, {"batch_size": 64, "loss": "pairwise"}]
    cases = [(grouped, trainings[0]), (grouped, trainings[1]), (single, trainings[0] | {"placement": TABLE_WISE})]
    jobs = [
        {"job": "exchanges", "dataset": str(data.path), "values": {**VALUES, "training": training}}
        for data, training in cases
    ]
    of_rows, of_order, of_single = at_work(jobs, processes=2)
    for found, gathers in ((of_rows, 0), (of_order, 1), (of_single, 0)):
        assert all((one["all_reduce"], one["all_gather"]) == (1, gathers) for one in found)
    assert [one["all_to_all_single"] for one in of_single] == [3, 3]  # ids, vectors, gradients


def test_a_loss_of_the_order_sees_whole_groups_and_every_row_once(grouped, at_work):
    training = {"batch_size": 128, "epochs": 2, "loss": "pairwise", "placement": {"all": "row-wise"}}
    values = {"model": VALUES["model"], "training": training}
    job = {"job": "curve", "dataset": str(grouped.path), "values": values, "double": False}
    first, second = at_work([job], processes=2)[0]
    assert first["losses"] == second["losses"]
    assert np.isfinite(first["losses"]).all()
    assert first["rows"] == 2 * grouped.num_rows["train"]
