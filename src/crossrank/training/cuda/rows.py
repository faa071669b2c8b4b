"""Triton kernels for rows of a table, and for the update; :mod:`crossrank.training.cuda.plain` says what each computes.

Sums are made of partial sums in a fixed order, never of atomic additions: the same seed gives the same weights.
"""
# A kernel's arguments are pointers and numbers of Triton's language, not Python's.
# mypy: disable-error-code="no-untyped-def, no-any-return, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import importlib
import importlib.util
import math
from typing import Any

import torch
from torch import Tensor

from crossrank.training.cuda.plain import Gradient, Numbers, Segments
from crossrank.training.idle import BETAS, EPSILON, FADING, curves, last_warm_step
from crossrank.training.lazy import LazyTable

PRESENT = importlib.util.find_spec("triton") is not None
triton: Any = importlib.import_module("triton") if PRESENT else None
tl: Any = importlib.import_module("triton.language") if PRESENT else None
jit: Any = triton.jit if PRESENT else lambda function: function

CHUNK = 64  # sorted rows that one program sums up
PROGRAMS = 2112  # that share the distinct rows, whose number only the device knows: 16 for each of 132 multiprocessors


def blocks(size: int, block: int) -> int:
    return -(-size // block)


def power(size: int) -> int:
    """The next power of two, from 16 on, the narrowest matrix product."""
    return max(16, 1 << (size - 1).bit_length())


# Rows of a table. The sorted places are cut into chunks of 64. A piece of a segment lies within one chunk; its sum is
# written at its first place. The pieces that begin a chunk are summed the same way once more, 64 chunks at a time, so
# that even a segment as long as the batch has few parts left.


@jit
def _first_kernel(rows, out, size, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + i, mask=i < size, other=-1)
    before = tl.load(rows + i - 1, mask=(i < size) & (i > 0), other=-1)
    tl.store(out + i, (row != before).to(tl.int32), mask=i < size)


@jit
def _starts_kernel(number, starts, size, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.load(number + i, mask=i < size, other=0)  # from 1 on
    before = tl.load(number + i - 1, mask=(i < size) & (i > 0), other=0)
    tl.store(starts + n - 1, i, mask=(i < size) & (n != before))
    tl.store(starts + n, tl.zeros((BLOCK,), tl.int32) + size, mask=i == size - 1)


@jit
def aged(w, m, v, since, now, reach, root, end, learning_rate, FADING: tl.constexpr, EPSILON: tl.constexpr):
    """A weight after the steps since its row was last touched; the learning rate is one for all, or a block."""
    start = tl.minimum(since, end)
    faded = tl.exp2((now - since).to(tl.float32) * FADING)
    moved = tl.load(reach + start).to(tl.float32) - faded * tl.load(reach + tl.minimum(now, end)).to(tl.float32)
    return w - learning_rate * m / (tl.sqrt(v) + EPSILON * tl.load(root + start).to(tl.float32)) * moved


@jit
def _read_kernel(weight, state, last, rates, rows, step, reach, root, out, size, learning_rate, end, width, parts,
                 RATES: tl.constexpr, FADING: tl.constexpr, EPSILON: tl.constexpr,
                 ROWS: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = n < size
    row = tl.load(rows + n, mask=inside, other=0).to(tl.int64)[:, None]
    j = tl.arange(0, WIDE)[None, :]
    mask = inside[:, None] & (j < width)
    kept = state + row * (parts * width) + j
    w = tl.load(weight + row * width + j, mask=mask, other=0.0)
    m, v = tl.load(kept, mask=mask, other=0.0), tl.load(kept + width, mask=mask, other=0.0)
    since = tl.load(last + row, mask=inside[:, None], other=0)
    rate = tl.load(rates + row, mask=inside[:, None], other=0.0) if RATES else learning_rate
    value = aged(w, m, v, since, tl.load(step), reach, root, end, rate, FADING, EPSILON)
    tl.store(out + n[:, None].to(tl.int64) * width + j, value, mask=mask)


def one_or_each(learning_rate: float | Tensor) -> tuple[Tensor | None, float]:
    """The learning rates of rows, if each has its own, and the one that all share, which is 1 then."""
    return (learning_rate, 1.0) if isinstance(learning_rate, Tensor) else (None, learning_rate)


def read_rows(table: LazyTable, rows: Tensor, step: Tensor) -> Tensor:
    weight, width = table.weight, table.width
    out = weight.new_empty(len(rows), width)
    reach, _, root = curves(table.decay, weight.device)
    rates, rate = one_or_each(table.learning_rate)
    _read_kernel[(blocks(len(rows), 16),)](
        weight, table.state, table.last, weight if rates is None else rates, rows, step, reach, root, out, len(rows),
        rate, len(reach) - 1, width, table.state.shape[1] // width, RATES=rates is not None,
        FADING=math.log2(FADING), EPSILON=EPSILON, ROWS=16, WIDE=power(width),
    )  # fmt: skip
    return out


def sort_rows(rows: Tensor) -> Segments:
    ordered, places = rows.sort()
    size, programs = len(rows), (blocks(len(rows), 1024),)
    first = torch.empty_like(rows)
    _first_kernel[programs](ordered, first, size, BLOCK=1024)
    number = first.cumsum(0, dtype=torch.int32)
    starts = rows.new_empty(size + 1)
    _starts_kernel[programs](number, starts, size, BLOCK=1024)
    return Segments(ordered, places, starts, number[-1])


@jit
def _piece_kernel(rows, places, matrix, first, out, size, L, width, F: tl.constexpr,
                  CHUNK: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    k = tl.arange(0, CHUNK)
    p = tl.program_id(0) * CHUNK + k
    inside = p < size
    row = tl.load(rows + p, mask=inside, other=-1)
    before = tl.load(rows + p - 1, mask=inside & (k > 0), other=-1)
    place = tl.load(places + p, mask=inside, other=0).to(tl.int32)
    j = tl.arange(0, WIDE)
    where = (place // F).to(tl.int64) * L + tl.load(first + place % F)
    vectors = tl.load(matrix + where[:, None] + j[None, :], mask=inside[:, None] & (j < width)[None, :], other=0.0)
    same = (row[:, None] == row[None, :]).to(vectors.dtype)
    total = tl.dot(same, vectors, input_precision="tf32x3")  # (CHUNK, WIDE): each place has the sum of its piece
    mask = (inside & (row != before))[:, None] & (j < width)[None, :]
    tl.store(out + p[:, None].to(tl.int64) * width + j[None, :], total, mask=mask)


@jit
def _second_kernel(rows, pieces, out, size, chunks, width, CHUNK: tl.constexpr, WIDE: tl.constexpr):
    k = tl.arange(0, CHUNK)
    c = tl.program_id(0) * CHUNK + k
    inside = c < chunks
    row = tl.load(rows + c * CHUNK, mask=inside, other=-1)
    before = tl.load(rows + (c - 1) * CHUNK, mask=inside & (k > 0), other=-1)
    j = tl.arange(0, WIDE)
    mask = inside[:, None] & (j < width)[None, :]
    vectors = tl.load(pieces + c[:, None].to(tl.int64) * CHUNK * width + j[None, :], mask=mask, other=0.0)
    same = (row[:, None] == row[None, :]).to(tl.float32)
    total = tl.dot(same, vectors, input_precision="tf32x3")
    tl.store(out + c[:, None] * width + j[None, :], total, mask=mask & (row != before)[:, None])


@jit
def _total_kernel(starts, distinct, pieces, second, out, squares, width,
                  CHUNK: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    j = tl.arange(0, WIDE)
    wide = (j < width)[None, :]
    count = tl.load(distinct)
    for tile in range(tl.program_id(0), tl.cdiv(count, ROWS), tl.num_programs(0)):
        s = tile * ROWS + tl.arange(0, ROWS)
        live = s < count
        start = tl.load(starts + s, mask=live, other=0)
        stop = tl.load(starts + s + 1, mask=live, other=1)
        apart = live & (start % CHUNK != 0)  # the piece before the first whole chunk
        place = start[:, None].to(tl.int64) * width + j[None, :]
        total = tl.load(pieces + place, mask=apart[:, None] & wide, other=0.0)
        c = (start + CHUNK - 1) // CHUNK
        last = (stop - 1) // CHUNK
        more = live & (c <= last)
        total += tl.load(second + c[:, None] * width + j[None, :], mask=more[:, None] & wide, other=0.0)
        rounds = tl.max(tl.where(more, last // CHUNK - c // CHUNK, 0), axis=0)
        for _ in range(rounds):
            c = (c // CHUNK + 1) * CHUNK
            mask = (more & (c <= last))[:, None] & wide
            total += tl.load(second + c[:, None] * width + j[None, :], mask=mask, other=0.0)
        tl.store(out + s[:, None].to(tl.int64) * width + j[None, :], total, mask=live[:, None] & wide)
        tl.store(squares + s, tl.sum(total * total, axis=1), mask=live)


def sum_segments(segments: Segments, gradient: Gradient) -> tuple[Tensor, Tensor]:
    matrix, first, width = gradient
    size, wide = len(segments.rows), power(width)
    chunks = blocks(size, CHUNK)
    pieces, total = (matrix.new_empty(size, width, dtype=torch.float32) for _ in range(2))
    second, squares = pieces.new_empty(chunks, width), pieces.new_zeros(size)
    _piece_kernel[(chunks,)](
        segments.rows, segments.places, matrix, first, pieces, size, matrix.stride(0), width,
        F=len(first), CHUNK=CHUNK, WIDE=wide,
    )  # fmt: skip
    _second_kernel[(blocks(chunks, CHUNK),)](segments.rows, pieces, second, size, chunks, width, CHUNK=CHUNK, WIDE=wide)
    _total_kernel[(min(blocks(size, 16), PROGRAMS),)](
        segments.starts, segments.distinct, pieces, second, total, squares, width, CHUNK=CHUNK, ROWS=16, WIDE=wide
    )
    return total, squares


# The update


@jit
def _begin_kernel(step, constants, dense, rows, now, scale, parts, BLOCK: tl.constexpr):
    model = tl.program_id(0)
    if model == 0:
        t = tl.load(step) + 1
        tl.store(step, t)
        exact = t.to(tl.float64)
        log_beta1, log_beta2 = tl.load(constants), tl.load(constants + 1)
        learning_rate, decay = tl.load(constants + 2), tl.load(constants + 3)
        tl.store(now, learning_rate / (1.0 - tl.exp(exact * log_beta1)))
        tl.store(now + 1, tl.sqrt(1.0 - tl.exp(exact * log_beta2)))
        tl.store(now + 2, 1.0 - tl.minimum(decay, (1.0 + exact) / (10.0 + exact)))
    k = tl.arange(0, BLOCK)
    square = tl.sum(tl.load(dense + model * parts + k, mask=k < parts, other=0.0), axis=0) + tl.load(rows + model)
    clip = tl.load(constants + 4)
    shrink = tl.minimum(clip / (tl.sqrt(square).to(tl.float64) + 1e-6), 1.0)
    tl.store(scale + model, tl.where(clip > 0, shrink, 1.0).to(tl.float32))


@jit
def _squares_kernel(values, out, size, STEPS, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for step in range(STEPS):
        i = (tl.program_id(0) * STEPS + step) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(values + tl.program_id(1).to(tl.int64) * size + i, mask=i < size, other=0.0)
        total += value * value
    tl.store(out + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), tl.sum(total, axis=0))


def squares(values: Tensor) -> Tensor:
    models, size = values.shape
    steps = blocks(size, 1024 * 512)
    programs = blocks(size, 1024 * steps)
    out = values.new_empty(models, programs)
    _squares_kernel[(programs, models)](values, out, size, steps, BLOCK=1024)
    return out


def begin_update(
    step: Tensor, dense: Tensor, rows: Tensor, *, learning_rate: float, decay: float, clip_norm: float
) -> Numbers:
    models, parts = dense.shape
    numbers = Numbers(step, dense.new_empty(3, dtype=torch.float64), dense.new_empty(models))
    constants = _constants(learning_rate, decay, clip_norm, step.device)
    _begin_kernel[(models,)](step, constants, dense, rows, numbers.now, numbers.scale, parts, BLOCK=power(parts))
    return numbers


_CONSTANTS: dict[tuple[float, float, float, torch.device], Tensor] = {}


def _constants(learning_rate: float, decay: float, clip_norm: float, device: torch.device) -> Tensor:
    """On the device, since a kernel takes numbers as float32, which is too coarse for powers to the step's number."""
    key = (learning_rate, decay, clip_norm, device)
    if key not in _CONSTANTS:
        values = [math.log(BETAS[0]), math.log(BETAS[1]), learning_rate, decay, clip_norm, math.log(decay or 1.0)]
        _CONSTANTS[key] = torch.tensor(values, dtype=torch.float64, device=device)
    return _CONSTANTS[key]


@jit
def _adam_kernel(weight, mean, square, average, copy, gradient, now, scale, rates, size,
                 AVERAGE: tl.constexpr, COPY: tl.constexpr, RATES: tl.constexpr, BETA1: tl.constexpr,
                 BETA2: tl.constexpr, EPSILON: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    model = tl.program_id(1)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = j < size
    i = model.to(tl.int64) * size + j
    step_size, root = tl.load(now).to(tl.float32), tl.load(now + 1).to(tl.float32)
    if RATES:
        step_size *= tl.load(rates + model)
    g = tl.load(gradient + i, mask=mask) * tl.load(scale + model)
    m, v, w = tl.load(mean + i, mask=mask), tl.load(square + i, mask=mask), tl.load(weight + i, mask=mask)
    m += (g - m) * (1.0 - BETA1)
    v = v * BETA2 + g * g * (1.0 - BETA2)
    w -= step_size * (m / (tl.sqrt(v) / root + EPSILON))
    tl.store(mean + i, m, mask=mask)
    tl.store(square + i, v, mask=mask)
    tl.store(weight + i, w, mask=mask)
    if AVERAGE:
        a = tl.load(average + i, mask=mask)
        tl.store(average + i, a + (w - a) * tl.load(now + 2).to(tl.float32), mask=mask)
    if COPY:
        tl.store(copy + i, w.to(copy.dtype.element_ty), mask=mask)


def adam(
    weight: Tensor, mean: Tensor, square: Tensor, average: Tensor | None, copy: Tensor | None, gradient: Tensor,
    numbers: Numbers, rates: Tensor | None = None,
) -> None:  # fmt: skip
    models, size = weight.shape
    _adam_kernel[(blocks(size, 1024), models)](
        weight, mean, square, average if average is not None else mean, copy if copy is not None else mean, gradient,
        numbers.now, numbers.scale, mean if rates is None else rates, size,
        AVERAGE=average is not None, COPY=copy is not None, RATES=rates is not None,
        BETA1=BETAS[0], BETA2=BETAS[1], EPSILON=EPSILON, BLOCK=1024,
    )  # fmt: skip


@jit
def _adam_rows_kernel(weight, state, last, rates, rows, starts, distinct, total, step, now, scale, constants, reach,
                      lag, root, end, width, parts, rows_of_model, change, MANY: tl.constexpr, RATES: tl.constexpr,
                      AVERAGE: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr, EPSILON: tl.constexpr,
                      ROWS: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    count = tl.load(distinct)
    step_size, corrected = tl.load(now).to(tl.float32), tl.load(now + 1).to(tl.float32)
    log_beta1, log_beta2, learning_rate = tl.load(constants), tl.load(constants + 1), tl.load(constants + 2)
    before = tl.load(step) - 1
    warm_stop = tl.minimum(before, change)
    below = tl.full((), 1.0, tl.float64)
    for k in tl.static_range(2, 11):
        below *= warm_stop.to(tl.float64) + k
    reach_stop, lag_stop = tl.load(reach + tl.minimum(before, end)), tl.load(lag + tl.minimum(before, end))
    j = tl.arange(0, WIDE)[None, :]
    for tile in range(tl.program_id(0), tl.cdiv(count, ROWS), tl.num_programs(0)):
        s = tile * ROWS + tl.arange(0, ROWS)
        live = s < count
        row = tl.load(rows + tl.load(starts + s, mask=live, other=0), mask=live, other=0).to(tl.int64)
        mask = live[:, None] & (j < width)
        g = tl.load(total + s[:, None].to(tl.int64) * width + j, mask=mask, other=0.0)
        model = row // rows_of_model if MANY else row * 0
        g *= tl.load(scale + model, mask=live, other=0.0)[:, None]
        here = weight + row[:, None] * width + j
        kept = state + row[:, None] * (parts * width) + j
        w = tl.load(here, mask=mask, other=0.0)
        m, v = tl.load(kept, mask=mask, other=0.0), tl.load(kept + width, mask=mask, other=0.0)
        # The steps since the row was last touched
        since = tl.load(last + row, mask=live, other=0)
        start, length = tl.minimum(since, end), (before - since).to(tl.float64)
        reach_start, root_start = tl.load(reach + start), tl.load(root + start).to(tl.float32)
        faded = tl.exp(length * (log_beta1 - 0.5 * log_beta2))
        rate = tl.load(rates + row, mask=live, other=0.0)[:, None] if RATES else learning_rate.to(tl.float32)
        direction = rate * m / (tl.sqrt(v) + EPSILON * root_start[:, None])
        old = w
        w -= direction * (reach_start - faded * reach_stop).to(tl.float32)[:, None]
        m *= tl.exp(length * log_beta1).to(tl.float32)[:, None]
        v *= tl.exp(length * log_beta2).to(tl.float32)[:, None]
        # This step
        m += (g - m) * (1.0 - BETA1)
        v = v * BETA2 + g * g * (1.0 - BETA2)
        pace = step_size * rate if RATES else step_size
        w -= pace * (m / (tl.sqrt(v) / corrected + EPSILON))
        tl.store(kept, m, mask=mask)
        tl.store(kept + width, v, mask=mask)
        tl.store(here, w, mask=mask)
        tl.store(last + row, tl.zeros((ROWS,), tl.int64) + before + 1, mask=live)
        if AVERAGE:
            warm_start = tl.minimum(since, change).to(tl.float64)
            left = tl.exp((before - tl.maximum(since, warm_stop)).to(tl.float64) * tl.load(constants + 5)) / below
            for k in tl.static_range(2, 11):
                left *= warm_start + k
            carried = (1.0 - left) * reach_start - left * tl.load(lag + start) + faded * lag_stop
            a = tl.load(kept + 2 * width, mask=mask, other=0.0)
            a = old + (a - old) * left.to(tl.float32)[:, None] - direction * carried.to(tl.float32)[:, None]
            a += (w - a) * tl.load(now + 2).to(tl.float32)
            tl.store(kept + 2 * width, a, mask=mask)


def adam_rows(table: LazyTable, segments: Segments, total: Tensor, numbers: Numbers) -> None:
    weight, state, decay, width = table.weight, table.state, table.decay, table.width
    size, models = len(segments.rows), len(numbers.scale)
    rates, rate = one_or_each(table.learning_rate)
    constants, known = _constants(rate, decay, 0.0, weight.device), curves(decay, weight.device)
    _adam_rows_kernel[(min(blocks(size, 16), PROGRAMS),)](
        weight, state, table.last, weight if rates is None else rates, segments.rows, segments.starts,
        segments.distinct, total, numbers.step, numbers.now, numbers.scale, constants, *known, len(known.reach) - 1,
        width, state.shape[1] // width, max(len(weight) // models, 1), last_warm_step(decay),
        MANY=models > 1, RATES=rates is not None, AVERAGE=decay > 0,
        BETA1=BETAS[0], BETA2=BETAS[1], EPSILON=EPSILON, ROWS=16, WIDE=power(width),
    )  # fmt: skip
