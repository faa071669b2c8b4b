"""Triton kernels for rows of a table; :mod:`crossrank.training.cuda.plain` says what each computes.

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

from crossrank.training.cuda.plain import Gradient, Segments
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
    drift = fraction(fractions + tl.minimum(since, end) * 4, root, v, EPSILON)
    later = fraction(fractions + tl.minimum(now, end) * 4, root, v, EPSILON * tl.exp2(length * LOG_GROWTH))
    if SHRINK:
        kept = logs_since(curves + 9, since, now, end, tl.load(tail + 3))
        kept = tl.exp(kept).to(tl.float32)
        w, drift = kept * w, kept * drift
    moved = drift - tl.exp2(length * LOG_FADING) * later
    return w - tl.where(m == 0.0, 0.0, rate * m * moved)  # a row without v has no m


@jit
def fraction(part, root, v, epsilon):
    """(a R + b ε) / (R² + c ε R + d ε²): a sum over all later steps, of which two terms are left."""
    above = tl.load(part) * root + tl.load(part + 1) * epsilon
    return above / (v + tl.load(part + 2) * epsilon * root + tl.load(part + 3) * epsilon * epsilon)


@jit
def logs_since(logs, since, now, end, log_tail):
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
        weight, table.state, table.last, rule.table_rates, rows, step, rule.fractions, rule.curves, rule.numbers, out,
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
def _second_kernel(rows, pieces, out, chunks, width, CHUNK: tl.constexpr, WIDE: tl.constexpr):
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
    _second_kernel[(blocks(chunks, CHUNK),)](segments.rows, pieces, second, chunks, width, CHUNK=CHUNK, WIDE=wide)
    _total_kernel[(min(blocks(size, 16), PROGRAMS),)](
        segments.starts, segments.distinct, pieces, second, total, squares, width, CHUNK=CHUNK, ROWS=16, WIDE=wide
    )
    return total, squares
