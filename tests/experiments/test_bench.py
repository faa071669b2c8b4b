"""The measurement measures what it says."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from crossrank.experiments.bench import Row, bench_models, bench_table, traffic_of

ROW = Row("fm", 10, 5, 1.0, 80.0, 1000, memory_share=1.02, lookup_share=0.2)


def test_the_dnn_comes_first_and_is_the_measure():
    threads = torch.get_num_threads()
    dnn, fm = bench_models(["fm"], batch_size=4, num_threads=1, repeats=1)
    assert (dnn.name, fm.name) == ("dnn", "fm")
    assert dnn.ratio == 1.0
    assert fm.ratio == pytest.approx((fm.microseconds / fm.multiply_adds) / (dnn.microseconds / dnn.multiply_adds))
    assert dnn.multiply_adds == 429 * 256 + 256 * 256 + 256
    assert torch.get_num_threads() == threads


def test_bytes_are_counted_once_for_each_operand_and_not_for_views():
    left, right = torch.ones(3, 4), torch.ones(4, 5)
    traffic = traffic_of(lambda: left.view(12).view(3, 4) @ right)
    assert (traffic.total, traffic.largest) == (4 * (12 + 20 + 15), 4 * 20)
    assert traffic.products == traffic.total
    assert traffic_of(lambda: left + left).products == 0


def test_a_slow_model_tells_its_bound():
    assert ROW.bound == "lookups 20%, memory 100%"
    assert dataclasses.replace(ROW, ratio=3.0).bound == "arithmetic"


def test_the_table_has_a_line_for_each_model():
    assert len(bench_table([ROW, ROW]).splitlines()) == 4
