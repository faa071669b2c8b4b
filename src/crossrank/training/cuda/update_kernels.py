"""Triton kernels for the update; :mod:`crossrank.training.cuda.plain` says what each computes."""
# A kernel's arguments are pointers and numbers of Triton's language, not Python's.
# mypy: disable-error-code="no-untyped-def, no-any-return, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import torch
from torch import Tensor

from crossrank.training.cuda.plain import Numbers, Segments
from crossrank.training.cuda.row_kernels import PROGRAMS, aging, blocks, fraction, jit, logs_since, power, tl
from crossrank.training.idle import BETAS, EPSILON
from crossrank.training.lazy import LazyTable
from crossrank.training.rule import UpdateRule


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
    (models, parts), placed = dense.shape, rule.on(step.device)
    numbers = Numbers(step, dense.new_empty(4, dtype=torch.float64), dense.new_empty(models))
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
def _adam_rows_kernel(weight, state, last, rates, rows, starts, distinct, total, step, now, scale, fractions, curves,
                      numbers, end, width, parts, rows_of_model, table_decay, AVERAGE: tl.constexpr,
                      SHRINK: tl.constexpr, LOG_FADING: tl.constexpr, LOG_GROWTH: tl.constexpr, BETA1: tl.constexpr,
                      BETA2: tl.constexpr, EPSILON: tl.constexpr, ONE: tl.constexpr, ROWS: tl.constexpr,
                      WIDE: tl.constexpr):  # fmt: skip
    count = tl.load(distinct)
    step_size, corrected = tl.load(now).to(tl.float32), tl.load(now + 1).to(tl.float32)
    log_beta1, log_beta2 = tl.load(numbers), tl.load(numbers + 1)
    before = tl.load(step) - 1
    stop = tl.minimum(before, end)
    j = tl.arange(0, WIDE)[None, :]
    for tile in range(tl.program_id(0), tl.cdiv(count, ROWS), tl.num_programs(0)):
        s = tile * ROWS + tl.arange(0, ROWS)
        live = s < count
        row = tl.load(rows + tl.load(starts + s, mask=live, other=0), mask=live, other=0).to(tl.int64)
        mask = live[:, None] & (j < width)
        g = tl.load(total + s[:, None].to(tl.int64) * width + j, mask=mask, other=0.0)
        model = row * 0 if ONE else row // rows_of_model
        g *= tl.load(scale + model, mask=live, other=0.0)[:, None]
        here = weight + row[:, None] * width + j
        kept = state + row[:, None] * (parts * width) + j
        old = tl.load(here, mask=mask, other=0.0)
        m, v = tl.load(kept, mask=mask, other=0.0), tl.load(kept + width, mask=mask, other=0.0)
        # The steps since the row was last touched
        since = tl.load(last + row, mask=live, other=0)
        start, length = tl.minimum(since, end), (before - since).to(tl.float64)
        grown = tl.exp(-0.5 * length * log_beta2)
        faded = tl.exp(length * log_beta1) * grown
        rate = tl.load(rates + model, mask=live, other=0.0)[:, None]
        root, pace = tl.sqrt(v), rate * m
        drift = fraction(fractions + start[:, None] * 4, root, v, EPSILON)
        later = fraction(fractions + stop * 4, root, v, EPSILON * grown.to(tl.float32)[:, None])
        moved, w = drift - faded.to(tl.float32)[:, None] * later, old
        if SHRINK:
            stays = tl.exp(logs_since(curves + 9, since, before, end, tl.load(numbers + 3)))
            moved += (stays - 1.0).to(tl.float32)[:, None] * drift
            w *= stays.to(tl.float32)[:, None]
        w -= tl.where(m == 0.0, 0.0, pace * moved)  # a row without v has no m
        if AVERAGE:  # the sum as one term, which has its first two moments
            left = tl.exp(logs_since(curves + 8, since, before, end, tl.load(numbers + 2)))
            first, final = curves + start * 11, curves + stop * 11
            size, place = tl.load(first), tl.load(first + 1)
            own = 1.0 - left
            if SHRINK:
                size, place = stays * size, stays * place
                own = stays * tl.load(final + 10) - left * tl.load(first + 10)
            size -= faded * tl.load(final)
            place -= faded * grown * tl.load(final + 1)
            if SHRINK:
                size, place = size * tl.load(final + 10), place * tl.load(final + 10)
            size += faded * tl.load(final + 4) - left * tl.load(first + 4)
            place += faded * grown * tl.load(final + 5) - left * tl.load(first + 5)
            place = tl.maximum(place / tl.where(size == 0.0, 1.0, size), 1e-3).to(tl.float32)[:, None]
            carried = size.to(tl.float32)[:, None] / (root + EPSILON * place)  # v may be 0 where m is not
            a = tl.load(kept + 2 * width, mask=mask, other=0.0)
            a = left.to(tl.float32)[:, None] * a + own.to(tl.float32)[:, None] * old
            a -= tl.where(m == 0.0, 0.0, pace * carried)
        m *= (faded / grown).to(tl.float32)[:, None]
        v *= (1.0 / (grown * grown)).to(tl.float32)[:, None]
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
            a += (w - a) * tl.load(now + 2).to(tl.float32)
            tl.store(kept + 2 * width, a, mask=mask)


def adam_rows(table: LazyTable, segments: Segments, total: Tensor, numbers: Numbers) -> None:
    weight, state, width, rule = table.weight, table.state, table.width, table.rule
    placed, wide = rule.on(weight.device), power(width)
    high = max(256 // wide, 1)  # two elements for each of 128 threads: more took a third longer
    _adam_rows_kernel[(min(blocks(len(segments.rows), high), PROGRAMS),)](
        weight, state, table.last, placed.table_rates, segments.rows, segments.starts, segments.distinct, total,
        numbers.step, numbers.now, numbers.scale, placed.fractions, placed.curves, placed.numbers,
        len(placed.curves) - 1, width, state.shape[1] // width, len(weight) // len(numbers.scale),
        rule.settings.table_decay, **aging(rule),
        AVERAGE=rule.decay > 0, BETA1=BETAS[0], BETA2=BETAS[1], ONE=len(numbers.scale) == 1, ROWS=high, WIDE=wide,
    )  # fmt: skip
