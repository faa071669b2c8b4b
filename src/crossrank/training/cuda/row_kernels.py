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
from crossrank.training.idle import BETAS, EPSILON, FADING
from crossrank.training.lazy import LazyTable
from crossrank.training.rule import UpdateRule

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
def caught_up(w, m, v, since, now, fractions, curves, end, rate, tail, SHRINK: tl.constexpr, LOG_FADING: tl.constexpr,
         LOG_GROWTH: tl.constexpr, EPSILON: tl.constexpr):  # fmt: skip
    """A weight after the steps since its row was last touched; the rate is one for all, or a block."""
    length = (now - since).to(tl.float32)
    root = tl.sqrt(v)
    drift = _fraction(fractions + tl.minimum(since, end) * 4, root, v, EPSILON)
    later = _fraction(fractions + tl.minimum(now, end) * 4, root, v, EPSILON * tl.exp2(length * LOG_GROWTH))
    if SHRINK:
        kept = _logs_since(curves + 9, since, now, end, tl.load(tail + 3))
        kept = tl.exp(kept).to(tl.float32)
        w, drift = kept * w, kept * drift
    moved = drift - tl.exp2(length * LOG_FADING) * later
    return w - tl.where(m == 0.0, 0.0, rate * m * moved)  # a row without v has no m


@jit
def _fraction(part, root, v, epsilon):
    """(a R + b ε) / (R² + c ε R + d ε²): a sum over all later steps, of which two terms are left."""
    above = tl.load(part) * root + tl.load(part + 1) * epsilon
    return above / (v + tl.load(part + 2) * epsilon * root + tl.load(part + 3) * epsilon * epsilon)


@jit
def _logs_since(logs, since, now, end, log_tail):
    """Σ log over the steps since, from its curve, in float64; behind the last step each is the same."""
    inside = tl.load(logs + tl.minimum(now, end) * 11) - tl.load(logs + tl.minimum(since, end) * 11)
    return inside + (tl.maximum(now - end, 0) - tl.maximum(since - end, 0)).to(tl.float64) * log_tail


@jit
def _read_kernel(weight, state, last, rates, rows, step, fractions, curves, tail, out, size, end, width, parts,
                 rows_of_model, SHRINK: tl.constexpr, LOG_FADING: tl.constexpr, LOG_GROWTH: tl.constexpr,
                 EPSILON: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = n < size
    row = tl.load(rows + n, mask=inside, other=0).to(tl.int64)[:, None]
    j = tl.arange(0, WIDE)[None, :]
    mask = inside[:, None] & (j < width)
    kept = state + row * (parts * width) + j
    w = tl.load(weight + row * width + j, mask=mask, other=0.0)
    m, v = tl.load(kept, mask=mask, other=0.0), tl.load(kept + width, mask=mask, other=0.0)
    since = tl.load(last + row, mask=inside[:, None], other=0)
    rate = tl.load(rates + row // rows_of_model)
    value = caught_up(
        w, m, v, since, tl.load(step), fractions, curves, end, rate, tail, SHRINK, LOG_FADING, LOG_GROWTH, EPSILON
    )
    tl.store(out + n[:, None].to(tl.int64) * width + j, value, mask=mask)


def aging(rule: UpdateRule) -> dict[str, Any]:
    """What :func:`caught_up` is compiled for."""
    growth = -0.5 * math.log2(BETAS[1])
    shrink = rule.curves.shrink > 0
    return {"SHRINK": shrink, "LOG_FADING": math.log2(FADING), "LOG_GROWTH": growth, "EPSILON": EPSILON}


def read_rows(table: LazyTable, rows: Tensor, step: Tensor) -> Tensor:
    weight, width, rule = table.weight, table.width, table.rule.on(table.weight.device)
    out = weight.new_empty(len(rows), width)
    _read_kernel[(blocks(len(rows), 16),)](
        weight, table.state, table.last, rule.rates, rows, step, rule.fractions, rule.curves, rule.numbers, out,
        len(rows), len(rule.fractions) - 1, width, table.state.shape[1] // width, len(weight) // len(rule.rates),
        **aging(table.rule), ROWS=16, WIDE=power(width),
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
def _begin_kernel(step, factors, numbers, dense, rows, now, scale, last_factor, parts, clip, BLOCK: tl.constexpr):
    model = tl.program_id(0)
    if model == 0:
        t = tl.load(step) + 1
        tl.store(step, t)
        exact, factor = t.to(tl.float64), tl.load(factors + tl.minimum(t, last_factor))
        decay = tl.load(numbers + 4)
        tl.store(now, factor / (1.0 - tl.exp(exact * tl.load(numbers))))
        tl.store(now + 1, tl.sqrt(1.0 - tl.exp(exact * tl.load(numbers + 1))))
        tl.store(now + 2, 1.0 - tl.minimum(decay, (1.0 + exact) / (10.0 + exact)))
        tl.store(now + 3, factor)
    k = tl.arange(0, BLOCK)
    square = tl.sum(tl.load(dense + model * parts + k, mask=k < parts, other=0.0), axis=0) + tl.load(rows + model)
    shrink = tl.minimum(clip / (tl.sqrt(square) + 1e-6), 1.0)
    tl.store(scale + model, tl.where(clip > 0, shrink, 1.0))


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


def begin_update(step: Tensor, dense: Tensor, rows: Tensor, rule: UpdateRule, *, clip_norm: float) -> Numbers:
    models, parts = dense.shape
    numbers, placed = (
        Numbers(step, dense.new_empty(4, dtype=torch.float64), dense.new_empty(models)),
        rule.on(step.device),
    )
    _begin_kernel[(models,)](
        step, placed.factors, placed.numbers, dense, rows, numbers.now, numbers.scale, len(placed.factors) - 1, parts,
        clip_norm, BLOCK=power(parts),
    )  # fmt: skip
    return numbers


@jit
def _adam_kernel(weight, mean, square, average, copy, gradient, now, scale, rates, size,
                 AVERAGE: tl.constexpr, COPY: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr,
                 EPSILON: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    model = tl.program_id(1)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = j < size
    i = model.to(tl.int64) * size + j
    step_size, root = tl.load(now).to(tl.float32) * tl.load(rates + model), tl.load(now + 1).to(tl.float32)
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
    numbers: Numbers, rule: UpdateRule,
) -> None:  # fmt: skip
    models, size = weight.shape
    _adam_kernel[(blocks(size, 1024), models)](
        weight, mean, square, average if average is not None else mean, copy if copy is not None else mean, gradient,
        numbers.now, numbers.scale, rule.on(weight.device).rates, size, AVERAGE=average is not None,
        COPY=copy is not None, BETA1=BETAS[0], BETA2=BETAS[1], EPSILON=EPSILON, BLOCK=1024,
    )  # fmt: skip


@jit
def _gauss(total, first, second, third):
    """:func:`crossrank.training.idle.gauss`: two terms with these moments, and where they stand."""
    divisor = tl.where(total == 0.0, 1.0, total)
    mean, second, third = tl.where(total == 0.0, 1.0, first / divisor), second / divisor, third / divisor
    spread = second - mean * mean
    sound = spread > 1e-12 * mean * mean
    spread = tl.where(sound, spread, 1.0)
    skew = tl.where(sound, (third - 3.0 * mean * second + 2.0 * mean * mean * mean) / spread, 0.0)
    half = tl.sqrt(skew * skew / 4.0 + spread)
    low, high = mean + skew / 2.0 - half, mean + skew / 2.0 + half
    sound = sound & (low > 0.0)
    share = tl.where(sound, (mean - low) / (high - low), 0.0)
    mean = tl.maximum(mean, 0.0)
    return total * (1.0 - share), total * share, tl.where(sound, low, mean), tl.where(sound, high, mean)


@jit
def _sum_with_epsilon(total, first, second, third, root, EPSILON: tl.constexpr):
    one, other, low, high = _gauss(total, first, second, third)
    drift = one.to(tl.float32)[:, None] / (root + EPSILON * low.to(tl.float32)[:, None])
    return drift + other.to(tl.float32)[:, None] / (root + EPSILON * high.to(tl.float32)[:, None])


@jit
def _adam_rows_kernel(weight, state, last, rates, rows, starts, distinct, total, step, now, scale, curves, numbers,
                      end, width, parts, rows_of_model, table_decay, AVERAGE: tl.constexpr, SHRINK: tl.constexpr,
                      BETA1: tl.constexpr, BETA2: tl.constexpr, EPSILON: tl.constexpr,
                      ROWS: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    count = tl.load(distinct)
    step_size, corrected = tl.load(now).to(tl.float32), tl.load(now + 1).to(tl.float32)
    log_beta1, log_beta2 = tl.load(numbers), tl.load(numbers + 1)
    log_fading = log_beta1 - 0.5 * log_beta2
    before = tl.load(step) - 1
    stop = curves + tl.minimum(before, end) * 11
    j = tl.arange(0, WIDE)[None, :]
    for tile in range(tl.program_id(0), tl.cdiv(count, ROWS), tl.num_programs(0)):
        s = tile * ROWS + tl.arange(0, ROWS)
        live = s < count
        row = tl.load(rows + tl.load(starts + s, mask=live, other=0), mask=live, other=0).to(tl.int64)
        mask = live[:, None] & (j < width)
        g = tl.load(total + s[:, None].to(tl.int64) * width + j, mask=mask, other=0.0)
        model = row // rows_of_model
        g *= tl.load(scale + model, mask=live, other=0.0)[:, None]
        here = weight + row[:, None] * width + j
        kept = state + row[:, None] * (parts * width) + j
        w = tl.load(here, mask=mask, other=0.0)
        m, v = tl.load(kept, mask=mask, other=0.0), tl.load(kept + width, mask=mask, other=0.0)
        # The steps since the row was last touched
        since = tl.load(last + row, mask=live, other=0)
        length = (before - since).to(tl.float64)
        start = curves + tl.minimum(since, end) * 11
        stays = tl.full((), 1.0, tl.float64)
        if SHRINK:
            stays = tl.exp(_logs_since(curves + 9, since, before, end, tl.load(numbers + 3)))
        faded0 = tl.exp(length * log_fading)
        faded1 = tl.exp(length * (log_fading - 0.5 * log_beta2))
        faded2 = tl.exp(length * (log_fading - log_beta2))
        faded3 = tl.exp(length * (log_fading - 1.5 * log_beta2))
        c0 = stays * tl.load(start) - faded0 * tl.load(stop)
        c1 = stays * tl.load(start + 1) - faded1 * tl.load(stop + 1)
        c2 = stays * tl.load(start + 2) - faded2 * tl.load(stop + 2)
        c3 = stays * tl.load(start + 3) - faded3 * tl.load(stop + 3)
        rate = tl.load(rates + model, mask=live, other=0.0)[:, None]
        root, pace, old = tl.sqrt(v), tl.where(m == 0.0, 0.0, rate * m), w
        drift = tl.where(m == 0.0, 0.0, _sum_with_epsilon(c0, c1, c2, c3, root, EPSILON))
        if SHRINK:
            w *= stays.to(tl.float32)[:, None]
        w -= pace * drift
        m *= tl.exp(length * log_beta1).to(tl.float32)[:, None]
        v *= tl.exp(length * log_beta2).to(tl.float32)[:, None]
        # This step
        m += (g - m) * (1.0 - BETA1)
        v = v * BETA2 + g * g * (1.0 - BETA2)
        if SHRINK:
            w *= 1.0 - table_decay * rate * tl.load(now + 3).to(tl.float32)
        w -= step_size * rate * (m / (tl.sqrt(v) / corrected + EPSILON))
        tl.store(kept, m, mask=mask)
        tl.store(kept + width, v, mask=mask)
        tl.store(here, w, mask=mask)
        tl.store(last + row, tl.zeros((ROWS,), tl.int64) + before + 1, mask=live)
        if AVERAGE:
            left = tl.exp(_logs_since(curves + 8, since, before, end, tl.load(numbers + 2)))
            held = tl.load(stop + 10)
            e0 = held * c0 - left * tl.load(start + 4) + faded0 * tl.load(stop + 4)
            e1 = held * c1 - left * tl.load(start + 5) + faded1 * tl.load(stop + 5)
            e2 = held * c2 - left * tl.load(start + 6) + faded2 * tl.load(stop + 6)
            e3 = held * c3 - left * tl.load(start + 7) + faded3 * tl.load(stop + 7)
            own = stays * held - left * tl.load(start + 10)
            carried = tl.where(pace == 0.0, 0.0, pace * _sum_with_epsilon(e0, e1, e2, e3, root, EPSILON))
            a = tl.load(kept + 2 * width, mask=mask, other=0.0)
            a = left.to(tl.float32)[:, None] * a + own.to(tl.float32)[:, None] * old - carried
            a += (w - a) * tl.load(now + 2).to(tl.float32)
            tl.store(kept + 2 * width, a, mask=mask)


def adam_rows(table: LazyTable, segments: Segments, total: Tensor, numbers: Numbers) -> None:
    weight, state, width, rule = table.weight, table.state, table.width, table.rule
    placed = rule.on(weight.device)
    _adam_rows_kernel[(min(blocks(len(segments.rows), 16), PROGRAMS),)](
        weight, state, table.last, placed.rates, segments.rows, segments.starts, segments.distinct, total, numbers.step,
        numbers.now, numbers.scale, placed.curves, placed.numbers, len(placed.curves) - 1, width,
        state.shape[1] // width, len(weight) // len(numbers.scale), rule.settings.table_decay,
        AVERAGE=rule.decay > 0, SHRINK=rule.curves.shrink > 0, BETA1=BETAS[0], BETA2=BETAS[1], EPSILON=EPSILON,
        ROWS=16, WIDE=power(width),
    )  # fmt: skip
