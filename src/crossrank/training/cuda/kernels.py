"""The parts of a step on a GPU as Triton kernels; :mod:`crossrank.training.cuda.plain` says what each one computes.

Here: batches, x0, layers and loss. Those for rows of a table (``row_kernels``) and for the update (``update_kernels``)
can be had from here as well.
"""
# A kernel's arguments are pointers and numbers of Triton's language, not Python's.
# mypy: disable-error-code="no-untyped-def, no-any-return, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import torch
from torch import Tensor

from crossrank.training.cuda import plain
from crossrank.training.cuda.plain import Columns, Rows, Taken
from crossrank.training.cuda.row_kernels import (
    PRESENT,
    aging,
    blocks,
    caught_up,
    jit,
    power,
    read_rows,
    sort_rows,
    sum_segments,
    tl,
)
from crossrank.training.cuda.update_kernels import adam, adam_rows, begin_update, squares
from crossrank.training.loss import LogLoss, Loss, SquaredError

__all__ = ["PRESENT", "adam", "adam_rows", "begin_update", "cross", "cross_backward", "embed", "head", "head_backward",
           "loss_and_gradient", "read_rows", "relu_backward", "sort_rows", "squares", "sum_segments",
           "take_batch"]  # fmt: skip

ELEMENTS = 2048  # of an elementwise kernel's program


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
    _take_kernel[(blocks(batch_size, rows), order.numel() // max(num_rows, 1))](
        *source, order, start, *taken, num_rows, batch_size, len(source.weights), num_ids, num_numbers,
        ROWS=rows, WIDE=power(max(num_ids, num_numbers)),
    )  # fmt: skip
    return taken


@jit
def _embed_kernel(ids, numeric, weight, state, last, rates, step, feature, width, base, within, first_row, fractions,
                  curves, tail, x0, batch_size, end, parts, rows_of_model, F, M, E, L, SHRINK: tl.constexpr,
                  LOG_FADING: tl.constexpr, LOG_GROWTH: tl.constexpr, EPSILON: tl.constexpr, ONE: tl.constexpr,
                  ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (b < batch_size)[:, None]
    column = c < E
    embedded = inside & column[None, :]
    f = tl.load(feature + c, mask=column, other=0)
    wide = tl.load(width + c, mask=column, other=0)[None, :]
    j = tl.load(within + c, mask=column, other=0)[None, :]
    id_ = tl.load(ids + b[:, None] * F + f[None, :], mask=embedded, other=0).to(tl.int64)
    place = tl.load(base + c, mask=column, other=0)[None, :] + id_ * wide
    row = tl.load(first_row + c, mask=column, other=0)[None, :] + id_
    since = tl.load(last + row, mask=embedded, other=0)
    rate = tl.load(rates) if ONE else tl.load(rates + row // rows_of_model)
    value = tl.load(weight + place, mask=embedded, other=0.0)
    kept = state + (place - j) * parts + j
    m, v = tl.load(kept, mask=embedded, other=0.0), tl.load(kept + wide, mask=embedded, other=0.0)
    now = tl.load(step)
    value = caught_up(
        value, m, v, since, now, fractions, curves, end, rate, tail, SHRINK, LOG_FADING, LOG_GROWTH, EPSILON
    )
    is_number = inside & (c >= E)[None, :] & (c < E + M)[None, :]
    value += tl.load(numeric + b[:, None] * M + (c - E)[None, :], mask=is_number, other=0.0)
    value += tl.where(c == E + M, 1.0, 0.0)[None, :]
    tl.store(x0 + b[:, None].to(tl.int64) * L + c[None, :], value.to(x0.dtype.element_ty), mask=inside & (c < L)[None])


def embed(ids: Tensor, numeric: Tensor, rows: Rows, columns: Columns, padded_dim: int, dtype: torch.dtype) -> Tensor:
    x0 = torch.empty(len(ids), padded_dim, dtype=dtype, device=ids.device)
    rule, high, wide = rows.rule.on(ids.device), 8, 128
    _embed_kernel[(blocks(len(ids), high), blocks(padded_dim, wide))](
        ids, numeric, rows.weight, rows.state, rows.last, rule.table_rates, rows.step, *columns, rule.fractions,
        rule.curves, rule.numbers, x0, len(ids), len(rule.fractions) - 1, len(rows.state) // len(rows.weight),
        len(rows.last) // len(rule.rates), ids.shape[1], numeric.shape[1], len(columns.base), padded_dim,
        **aging(rows.rule), ONE=len(rule.rates) == 1, ROWS=high, COLUMNS=wide,
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
    _cross_kernel[(blocks(x0.numel(), ELEMENTS),)](x0, u, xl, out, x0.numel(), BLOCK=ELEMENTS, num_warps=8)
    return out


@jit
def _cross_backward_kernel(g, x0, u, gathered, by_u, by_x0, size, D, L: tl.constexpr,
                           GATHERED: tl.constexpr, CARRIED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * BLOCK
    i = start + tl.arange(0, BLOCK)
    mask = i < size
    gradient = tl.load(g + i, mask=mask).to(tl.float32)
    first = gradient * tl.load(x0 + i, mask=mask).to(tl.float32)
    # Of short integers: a division of long ones would cost more than the rest
    column = ((start % L).to(tl.int32) + tl.arange(0, BLOCK)) % L
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
    _cross_backward_kernel[(blocks(x0.numel(), ELEMENTS),)](
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
    programs = blocks(len(h), 16 * steps)
    by_z, sums = torch.empty_like(h), h.new_empty(programs, h.shape[1], dtype=torch.float32)
    _relu_backward_kernel[(programs, blocks(h.shape[1], 128))](
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
    _head_kernel[(blocks(len(x), 8),)](
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
    programs = blocks(len(x), 16 * steps)
    by_x = torch.empty_like(x)
    weight_sums = weight.new_empty(programs, len(weight))
    bias_sums = weight_sums if by_bias is None else weight.new_empty(programs, width)
    _head_backward_kernel[(programs, blocks(width, 128))](
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
    b, model = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1)
    mask = b < batch_size
    place = model * batch_size + b
    z, y = tl.load(logits + place, mask=mask, other=0.0), tl.load(labels + place, mask=mask, other=0.0)
    share = tl.load(weights + place, mask=mask, other=0.0) / tl.maximum(tl.load(weight_sum + model), 1e-12)
    if BINARY:
        small = tl.exp(-tl.abs(z))
        loss = tl.maximum(z, 0.0) - z * y + tl.log(1.0 + small)
        sigmoid = tl.where(z >= 0, 1.0 / (1.0 + small), small / (1.0 + small))
        gradient = sigmoid - y
    else:
        loss = (z - y) * (z - y)
        gradient = 2.0 * (z - y)
    tl.store(by_logits + place, gradient * share, mask=mask)
    tl.store(losses + model * tl.num_programs(0) + tl.program_id(0), tl.sum(loss * share, axis=0))


BINARY = {LogLoss: True, SquaredError: False}  # the losses that the kernel computes


def loss_and_gradient(loss: Loss, logits: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    if type(loss) not in BINARY:
        return plain.loss_and_gradient(loss, logits, labels, weights)
    size = logits.shape[-1]
    by_logits, programs, models = torch.empty_like(logits), blocks(size, 1024), logits.numel() // size
    losses = logits.new_empty(*logits.shape[:-1], programs)
    _loss_kernel[(programs, models)](
        logits, labels, weights, weights.sum(dim=-1), losses, by_logits, size, BINARY=BINARY[type(loss)], BLOCK=1024
    )
    return losses.sum(dim=-1), by_logits
