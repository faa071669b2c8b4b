"""Every Triton kernel is compiled to machine code of a GPU, which need not be here.

This file is also the program that does so. It needs a process of its own: here kernels may belong to the interpreter.
"""

from __future__ import annotations

import collections
import importlib
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from crossrank.training import TrainingSettings
from crossrank.training.cuda import kernels, row_kernels, update_kernels
from crossrank.training.cuda.plain import Columns, Gradient, Rows, Taken
from crossrank.training.lazy import LazyTable
from crossrank.training.loss import LogLoss, SquaredError
from crossrank.training.rule import UpdateRule

IN_BOTH_TYPES = [
    f"_{name}_kernel"
    for name in ("adam", "cross_backward", "cross", "embed", "head_backward", "head", "piece", "relu_backward")
]


def has_compiler() -> bool:
    """Whether Triton is here, with what makes machine code of its own language."""
    if not kernels.PRESENT:
        return False
    try:
        return importlib.import_module("triton.knobs").nvidia.ptxas is not None
    except RuntimeError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="there is no Triton with its assembler here")
def test_every_kernel_compiles_for_a_gpu(tmp_path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, __file__],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "_cross_kernel" in found["functions"] and "_adam_rows_kernel" in found["functions"]
    assert found["missing"] == found["half"] == []
    assert found["in both types"] == IN_BOTH_TYPES


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def launch_for_rows(rates: list[float], decay: float, table_decay: float) -> None:
    """Each kernel for rows of a table and for the update."""
    settings = TrainingSettings(learning_rate=rates[0], average_decay=decay, table_decay=table_decay)
    rule, step, models = UpdateRule(settings, learning_rates=rates), torch.tensor(3), len(rates)
    table, rows = LazyTable(numbers(50, 5), rule), torch.zeros(30, dtype=torch.int32)
    kernels.read_rows(table, rows, step)
    segments = kernels.sort_rows(rows)
    for dtype in (torch.float32, torch.bfloat16):
        total, _ = kernels.sum_segments(segments, Gradient(numbers(30, 10, dtype=dtype), torch.tensor([0]), 5))
        place = Rows(table.weight.view(-1), table.state.view(-1), table.last, step, rule)
        columns = Columns(*torch.zeros(5, 5, dtype=torch.int64))
        kernels.embed(rows.view(30, 1), numbers(30, 2), place, columns, 16, dtype)
    weight = numbers(models, 100)
    shared = kernels.begin_update(step, kernels.squares(weight), numbers(models), rule, clip_norm=10.0)
    copy = weight.bfloat16() if decay else None
    kernels.adam(weight, weight, weight, weight if decay else None, copy, weight, shared, rule)
    kernels.adam_rows(table, segments, total, shared)


def launch_for_layers(dtype: torch.dtype) -> None:
    x, weight, by_logits, sums = numbers(8, 16, dtype=dtype), numbers(13), numbers(8), numbers(16)
    kernels.cross(x, x, x)
    for gathered, carried in ((None, True), (x, False)):
        kernels.cross_backward(x, x, x, gathered, input_dim=13, carried=carried)
    kernels.relu_backward(x, x, sums)
    for start, by_bias in ((numbers(1), None), (numbers(8), sums)):
        kernels.head(x, weight, start)
        kernels.head_backward(x, weight, by_logits, numbers(13), by_bias)


def launch_for_batches() -> None:
    rows = numbers(8)
    for loss in (LogLoss(), SquaredError()):
        kernels.loss_and_gradient(loss, rows, rows, rows)
    source = Taken(torch.zeros(9, 2, dtype=torch.int32), numbers(9, 1), numbers(9), numbers(1))
    kernels.take_batch(source, torch.arange(9), torch.tensor(0), 4)


def compile_all() -> dict[str, Any]:
    """What there is to compile, and what was: functions, both values of each flag, matrices in both types."""
    jit = importlib.import_module("triton.runtime.jit").JITFunction
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    device = {"device": lambda: 0, "stream": lambda device: 0, "target": lambda: target}
    driver = SimpleNamespace(**{f"get_current_{name}": answer for name, answer in device.items()})
    importlib.import_module("triton.runtime.driver").driver.set_active(driver)
    found = {
        one.__name__
        for module in (kernels, row_kernels, update_kernels)
        for one in vars(module).values()
        if isinstance(one, jit)
    }
    compiled, flags, types = set(), collections.defaultdict(set), collections.defaultdict(set)

    def launcher(kernel, grid):
        def compile_instead(*arguments, **options):
            made = kernel.warmup(*arguments, grid=grid, **options)
            assert made.asm["cubin"]
            text = made.asm["source"]
            compiled.update(re.findall(r'tt\.func \w+ @"?(?:[\w.]+\.)?(\w+?)(?:__|\()', text))
            types[kernel.__name__].add("ptr<bf16>" in text)
            for name, value in options.items():
                if isinstance(value, bool):
                    flags[f"{kernel.__name__} {name}"].add(value)

        return compile_instead

    jit.__getitem__ = launcher
    launch_for_rows([0.01], 0.9999, 0.0)
    launch_for_rows([0.01, 0.02], 0.0, 0.001)
    launch_for_layers(torch.float32)
    launch_for_layers(torch.bfloat16)
    launch_for_batches()
    return {
        "functions": sorted(found),
        "missing": sorted(found - compiled),
        "half": sorted(name for name, values in flags.items() if len(values) == 1),
        "in both types": sorted(name for name, values in types.items() if len(values) == 2),
    }


if __name__ == "__main__":
    print(json.dumps(compile_all()))
