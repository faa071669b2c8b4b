"""The parts of a step on a GPU as Triton kernels; :mod:`crossrank.training.cuda_plain` says what each one computes.

Sums over rows are made of partial sums in a fixed order, never of atomic additions: the same seed gives the same
weights.
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

from crossrank.training.cuda_plain import Columns, Gradient, Numbers, Segments, Taken
from crossrank.training.lazy import BETAS, EPSILON, _last_warm_step

__all__ = ["adam", "adam_rows", "begin_update", "cross", "cross_backward", "embed", "head", "head_backward",
           "loss_and_gradient", "relu_backward", "sort_rows", "squares", "sum_segments", "take_batch"]  # fmt: skip

PRESENT = importlib.util.find_spec("triton") is not None
triton: Any = importlib.import_module("triton") if PRESENT else None
tl: Any = importlib.import_module("triton.language") if PRESENT else None
jit: Any = triton.jit if PRESENT else lambda function: function

ELEMENTS = 2048  # of an elementwise kernel's program
CHUNK = 64  # sorted rows that one program sums up
PROGRAMS = 2112  # that share the distinct rows, whose number only the device knows: 16 for each of 132 multiprocessors


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


def _power(size: int) -> int:
    """The next power of two, from 16 on, the narrowest matrix product."""
    return max(16, 1 << (size - 1).bit_length())


# Batches and x0


@jit
def _take_kernel(ids, numeric, labels, weights, order, start, ids_out, numeric_out, labels_out, weights_out,
                 num_rows, batch_size, num_weights, F, M, ROWS: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    first = tl.load(start)
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = b < batch_size
    real = first + b < num_rows
    model = tl.program_id(1)
    place = model.to(tl.int64) * num_rows + tl.where(real, first + b, first)
    row = tl.load(order + place, mask=inside, other=0)  # (ROWS,)
    b += model * batch_size
    c = tl.arange(0, WIDE)
    mask = inside[:, None] & (c < F)[None, :]
    value = tl.load(ids + row[:, None] * F + c[None, :], mask=mask)
    tl.store(ids_out + b[:, None] * F + c[None, :], value, mask=mask)
    mask = inside[:, None] & (c < M)[None, :]
    number = tl.load(numeric + row[:, None] * M + c[None, :], mask=mask)
    tl.store(numeric_out + b[:, None] * M + c[None, :], number, mask=mask)
    tl.store(labels_out + b, tl.load(labels + row, mask=inside), mask=inside)
    weight = tl.load(weights + row % num_weights, mask=inside)
    tl.store(weights_out + b, tl.where(real, weight, 0.0), mask=inside)


def take_batch(source: Taken, order: Tensor, start: Tensor, batch_size: int) -> Taken:
    taken = Taken(*(part.new_empty(*order.shape[:-1], batch_size, *part.shape[1:]) for part in source))
    num_rows = order.shape[-1]
    rows, num_ids, num_numbers = 32, source.ids.shape[1], source.numeric.shape[1]
    _take_kernel[(_blocks(batch_size, rows), order.numel() // max(num_rows, 1))](
        *source, order, start, *taken, num_rows, batch_size, len(source.weights), num_ids, num_numbers,
        ROWS=rows, WIDE=_power(max(num_ids, num_numbers)),
    )  # fmt: skip
    return taken


@jit
def _embed_kernel(ids, numeric, table, feature, width, base, x0, batch_size, F, M, E, L,
                  ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (b < batch_size)[:, None]
    embedded = inside & (c < E)[None, :]
    column = c < E
    f = tl.load(feature + c, mask=column, other=0)
    id_ = tl.load(ids + b[:, None] * F + f[None, :], mask=embedded, other=0)
    place = tl.load(base + c, mask=column, other=0)[None, :] + id_.to(tl.int64) * tl.load(
        width + c, mask=column, other=0
    )[None, :].to(tl.int64)
    value = tl.load(table + place, mask=embedded, other=0.0)
    is_number = inside & (c >= E)[None, :] & (c < E + M)[None, :]
    value += tl.load(numeric + b[:, None] * M + (c - E)[None, :], mask=is_number, other=0.0)
    value += tl.where(c == E + M, 1.0, 0.0)[None, :]
    tl.store(x0 + b[:, None].to(tl.int64) * L + c[None, :], value.to(x0.dtype.element_ty), mask=inside & (c < L)[None])


def embed(ids: Tensor, numeric: Tensor, table: Tensor, columns: Columns, padded_dim: int, dtype: torch.dtype) -> Tensor:
    x0 = torch.empty(len(ids), padded_dim, dtype=dtype, device=ids.device)
    rows, wide = 8, 128
    _embed_kernel[(_blocks(len(ids), rows), _blocks(padded_dim, wide))](
        ids, numeric, table, *columns, x0, len(ids), ids.shape[1], numeric.shape[1], len(columns.base), padded_dim,
        ROWS=rows, COLUMNS=wide,
    )  # fmt: skip
    return x0


# Cross layers


@jit
def _cross_kernel(x0, u, xl, out, size, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < size
    value = tl.load(x0 + i, mask=mask).to(tl.float32) * tl.load(u + i, mask=mask).to(tl.float32)
    value += tl.load(xl + i, mask=mask).to(tl.float32)
    tl.store(out + i, value.to(out.dtype.element_ty), mask=mask)


def cross(x0: Tensor, u: Tensor, xl: Tensor) -> Tensor:
    out = torch.empty_like(x0)
    _cross_kernel[(_blocks(x0.numel(), ELEMENTS),)](x0, u, xl, out, x0.numel(), BLOCK=ELEMENTS, num_warps=8)
    return out


@jit
def _cross_backward_kernel(g, x0, u, gathered, by_u, by_x0, size, D, L: tl.constexpr,
                           GATHERED: tl.constexpr, CARRIED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * BLOCK
    i = start + tl.arange(0, BLOCK)
    mask = i < size
    gradient = tl.load(g + i, mask=mask).to(tl.float32)
    first = gradient * tl.load(x0 + i, mask=mask).to(tl.float32)
    column = (
        (start % L).to(tl.int32) + tl.arange(0, BLOCK)
    ) % L  # a division of long integers would cost more than the rest
    first = tl.where(column < D, first, 0.0)
    tl.store(by_u + i, first.to(by_u.dtype.element_ty), mask=mask)
    second = gradient * tl.load(u + i, mask=mask).to(tl.float32)
    if CARRIED:
        second += gradient
    if GATHERED:
        second += tl.load(gathered + i, mask=mask).to(tl.float32)
    tl.store(by_x0 + i, second.to(by_x0.dtype.element_ty), mask=mask)


def cross_backward(
    gradient: Tensor, x0: Tensor, u: Tensor, gathered: Tensor | None, *, input_dim: int, carried: bool
) -> tuple[Tensor, Tensor]:
    by_u, by_x0 = torch.empty_like(x0), torch.empty_like(x0)
    _cross_backward_kernel[(_blocks(x0.numel(), ELEMENTS),)](
        gradient, x0, u, gathered if gathered is not None else x0, by_u, by_x0, x0.numel(), input_dim,
        L=x0.shape[-1], GATHERED=gathered is not None, CARRIED=carried, BLOCK=ELEMENTS, num_warps=8,
    )  # fmt: skip
    return by_u, by_x0


# Deep layers and the output


@jit
def _relu_backward_kernel(g, h, by_z, sums, batch_size, L, STEPS,
                          ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(STEPS):
        b = (tl.program_id(0) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        place = b[:, None].to(tl.int64) * L + c[None, :]
        mask = (b < batch_size)[:, None] & (c < L)[None, :]
        kept = tl.load(h + place, mask=mask, other=0.0) > 0
        gradient = tl.where(kept, tl.load(g + place, mask=mask, other=0.0).to(tl.float32), 0.0)
        tl.store(by_z + place, gradient.to(by_z.dtype.element_ty), mask=mask)
        total += gradient
    tl.store(sums + tl.program_id(0) * L + c, tl.sum(total, axis=0), mask=c < L)


def _steps(batch_size: int) -> int:
    """Tiles of 16 rows that a program sums up: many for a large batch, whose partial sums are many anyway."""
    return max(2, min(8, batch_size // 2048))


def relu_backward(gradient: Tensor, h: Tensor, by_bias: Tensor) -> Tensor:
    steps = _steps(len(h))
    programs = _blocks(len(h), 16 * steps)
    by_z, sums = torch.empty_like(h), h.new_empty(programs, h.shape[1], dtype=torch.float32)
    _relu_backward_kernel[(programs, _blocks(h.shape[1], 128))](
        gradient, h, by_z, sums, len(h), h.shape[1], steps, ROWS=16, COLUMNS=128
    )
    torch.sum(sums, dim=0, out=by_bias)
    return by_z


@jit
def _head_kernel(x, weight, start, out, batch_size, L, K, START_STRIDE: tl.constexpr,
                 ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = b < batch_size
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, K, COLUMNS):
        c = first + tl.arange(0, COLUMNS)
        value = tl.load(
            x + b[:, None].to(tl.int64) * L + c[None, :], mask=inside[:, None] & (c < K)[None, :], other=0.0
        )
        total += value.to(tl.float32) * tl.load(weight + c, mask=c < K, other=0.0)[None, :]
    logit = tl.load(start + b * START_STRIDE, mask=inside, other=0.0) + tl.sum(total, axis=1)
    tl.store(out + b, logit, mask=inside)


def head(x: Tensor, weight: Tensor, start: Tensor) -> Tensor:
    out = torch.empty(len(x), dtype=torch.float32, device=x.device)
    stride = int(start.numel() > 1)  # one bias for all, or the sum so far of each
    _head_kernel[(_blocks(len(x), 8),)](
        x, weight, start, out, len(x), x.shape[1], len(weight), START_STRIDE=stride, ROWS=8, COLUMNS=256
    )
    return out


@jit
def _head_backward_kernel(x, weight, by_logits, by_x, weight_sums, bias_sums, batch_size, L, K, STEPS,
                          RELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    w = tl.load(weight + c, mask=c < K, other=0.0)
    by_weight = tl.zeros((ROWS, COLUMNS), tl.float32)
    by_bias = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(STEPS):
        b = (tl.program_id(0) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        place = b[:, None].to(tl.int64) * L + c[None, :]
        mask = (b < batch_size)[:, None] & (c < L)[None, :]
        value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(by_logits + b, mask=b < batch_size, other=0.0)[:, None]
        gradient = g * w[None, :]
        if RELU:
            gradient = tl.where(value > 0, gradient, 0.0)
            by_bias += gradient
        tl.store(by_x + place, gradient.to(by_x.dtype.element_ty), mask=mask)
        by_weight += g * value
    tl.store(weight_sums + tl.program_id(0) * K + c, tl.sum(by_weight, axis=0), mask=c < K)
    if RELU:
        tl.store(bias_sums + tl.program_id(0) * L + c, tl.sum(by_bias, axis=0), mask=c < L)


def head_backward(x: Tensor, weight: Tensor, by_logits: Tensor, by_weight: Tensor, by_bias: Tensor | None) -> Tensor:
    steps, width = _steps(len(x)), x.shape[1]
    programs = _blocks(len(x), 16 * steps)
    by_x = torch.empty_like(x)
    weight_sums = weight.new_empty(programs, len(weight))
    bias_sums = weight_sums if by_bias is None else weight.new_empty(programs, width)
    _head_backward_kernel[(programs, _blocks(width, 128))](
        x, weight, by_logits, by_x, weight_sums, bias_sums, len(x), width, len(weight), steps,
        RELU=by_bias is not None, ROWS=16, COLUMNS=128,
    )  # fmt: skip
    torch.sum(weight_sums, dim=0, out=by_weight)
    if by_bias is not None:
        torch.sum(bias_sums, dim=0, out=by_bias)
    return by_x


@jit
def _loss_kernel(logits, labels, weights, weight_sum, losses, by_logits, batch_size,
                 BINARY: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = b < batch_size
    z, y = tl.load(logits + b, mask=mask, other=0.0), tl.load(labels + b, mask=mask, other=0.0)
    share = tl.load(weights + b, mask=mask, other=0.0) / tl.maximum(tl.load(weight_sum), 1e-12)
    if BINARY:
        small = tl.exp(-tl.abs(z))
        loss = tl.maximum(z, 0.0) - z * y + tl.log(1.0 + small)
        sigmoid = tl.where(z >= 0, 1.0 / (1.0 + small), small / (1.0 + small))
        gradient = sigmoid - y
    else:
        loss = (z - y) * (z - y)
        gradient = 2.0 * (z - y)
    tl.store(by_logits + b, gradient * share, mask=mask)
    tl.store(losses + tl.program_id(0), tl.sum(loss * share, axis=0))


def loss_and_gradient(logits: Tensor, labels: Tensor, weights: Tensor, *, binary: bool) -> tuple[Tensor, Tensor]:
    by_logits, programs = torch.empty_like(logits), _blocks(len(logits), 1024)
    losses = logits.new_empty(programs)
    _loss_kernel[(programs,)](
        logits, labels, weights, weights.sum(), losses, by_logits, len(logits), BINARY=binary, BLOCK=1024
    )
    return losses.sum(), by_logits


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


def sort_rows(rows: Tensor) -> Segments:
    ordered, places = rows.sort()
    size, programs = len(rows), (_blocks(len(rows), 1024),)
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
    size, wide = len(segments.rows), _power(width)
    chunks = _blocks(size, CHUNK)
    pieces, total = (matrix.new_empty(size, width, dtype=torch.float32) for _ in range(2))
    second, squares = pieces.new_empty(chunks, width), pieces.new_zeros(size)
    _piece_kernel[(chunks,)](
        segments.rows, segments.places, matrix, first, pieces, size, matrix.stride(0), width,
        F=len(first), CHUNK=CHUNK, WIDE=wide,
    )  # fmt: skip
    _second_kernel[(_blocks(chunks, CHUNK),)](
        segments.rows, pieces, second, size, chunks, width, CHUNK=CHUNK, WIDE=wide
    )
    _total_kernel[(min(_blocks(size, 16), PROGRAMS),)](
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
    steps = _blocks(size, 1024 * 512)
    programs = _blocks(size, 1024 * steps)
    out = values.new_empty(models, programs)
    _squares_kernel[(programs, models)](values, out, size, steps, BLOCK=1024)
    return out


def begin_update(
    step: Tensor, dense: Tensor, rows: Tensor, *, learning_rate: float, decay: float, clip_norm: float
) -> Numbers:
    models, parts = dense.shape
    numbers = Numbers(step, dense.new_empty(3, dtype=torch.float64), dense.new_empty(models))
    constants = _constants(learning_rate, decay, clip_norm, step.device)
    _begin_kernel[(models,)](step, constants, dense, rows, numbers.now, numbers.scale, parts, BLOCK=_power(parts))
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
def _adam_kernel(weight, mean, square, average, copy, gradient, now, scale, size,
                 AVERAGE: tl.constexpr, COPY: tl.constexpr, BETA1: tl.constexpr, BETA2: tl.constexpr,
                 EPSILON: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    model = tl.program_id(1)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = j < size
    i = model.to(tl.int64) * size + j
    step_size, root = tl.load(now).to(tl.float32), tl.load(now + 1).to(tl.float32)
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
    numbers: Numbers,
) -> None:  # fmt: skip
    models, size = weight.shape
    _adam_kernel[(_blocks(size, 1024), models)](
        weight, mean, square, average if average is not None else mean, copy if copy is not None else mean, gradient,
        numbers.now, numbers.scale, size, AVERAGE=average is not None, COPY=copy is not None,
        BETA1=BETAS[0], BETA2=BETAS[1], EPSILON=EPSILON, BLOCK=1024,
    )  # fmt: skip


@jit
def _adam_rows_kernel(weight, state, last, rows, starts, distinct, total, step, now, scale, constants, width, parts,
                      rows_of_model, change, MANY: tl.constexpr, AVERAGE: tl.constexpr,
                      BETA1: tl.constexpr, BETA2: tl.constexpr, EPSILON: tl.constexpr,
                      ROWS: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    count = tl.load(distinct)
    step_size, root = tl.load(now).to(tl.float32), tl.load(now + 1).to(tl.float32)
    t = tl.load(step)
    warm_stop = tl.minimum(t - 1, change)
    below = tl.full((), 1.0, tl.float64)
    for k in tl.static_range(2, 11):
        below *= warm_stop.to(tl.float64) + k
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
        m += (g - m) * (1.0 - BETA1)
        v = v * BETA2 + g * g * (1.0 - BETA2)
        new = w - step_size * (m / (tl.sqrt(v) / root + EPSILON))
        tl.store(kept, m, mask=mask)
        tl.store(kept + width, v, mask=mask)
        tl.store(here, new, mask=mask)
        if AVERAGE:
            since = tl.load(last + row, mask=live, other=0)
            warm_start = tl.minimum(since, change).to(tl.float64)
            behind = tl.exp((t - 1 - tl.maximum(since, warm_stop)).to(tl.float64) * tl.load(constants + 5)) / below
            for k in tl.static_range(2, 11):
                behind *= warm_start + k
            a = tl.load(kept + 2 * width, mask=mask, other=0.0)
            a = w + (a - w) * behind.to(tl.float32)[:, None]
            a += (new - a) * tl.load(now + 2).to(tl.float32)
            tl.store(kept + 2 * width, a, mask=mask)
            tl.store(last + row, tl.zeros((ROWS,), tl.int64) + t, mask=live)


def adam_rows(
    weight: Tensor, state: Tensor, last: Tensor, segments: Segments, total: Tensor, numbers: Numbers, *, decay: float
) -> None:
    width, size = weight.shape[1], len(segments.rows)
    constants = _constants(0.0, decay, 0.0, weight.device)
    _adam_rows_kernel[(min(_blocks(size, 16), PROGRAMS),)](
        weight, state, last, segments.rows, segments.starts, segments.distinct, total, numbers.step, numbers.now,
        numbers.scale, constants, width, state.shape[1] // width, max(len(weight) // len(numbers.scale), 1),
        _last_warm_step(decay) if decay else 0, MANY=len(numbers.scale) > 1, AVERAGE=decay > 0,
        BETA1=BETAS[0], BETA2=BETAS[1], EPSILON=EPSILON, ROWS=16, WIDE=_power(width),
    )  # fmt: skip
