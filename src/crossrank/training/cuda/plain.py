"""The parts of a step on a GPU, in plain torch: what each kernel of :mod:`crossrank.training.cuda.kernels` must equal.

They run on any device. Where several models take a step together, what differs between them has a leading axis. Names:
B rows in a batch, F features, D the width of x0 and L ≥ D its padded width, N = B F looked-up rows of a table, U of
them distinct.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from crossrank.nn import Features
from crossrank.training.idle import BETAS, decay_at
from crossrank.training.lazy import LazyTable
from crossrank.training.loss import Loss
from crossrank.training.rule import Moved, UpdateRule


class Columns(NamedTuple):
    """Where each embedded column of x0 comes from: ``weight[base + id · width]``, the id being that of its feature.

    It is number ``within`` of the row ``first_row + id``.

    Shape: all (embedded columns,).
    """

    feature: Tensor
    width: Tensor
    base: Tensor
    within: Tensor
    first_row: Tensor


class Rows(NamedTuple):
    """All tables of an embedding layer one after the other, and the state of each row behind that of the one before.

    Shape: weight (P,), state (parts P,), last (R,); step (), how many steps were made.
    """

    weight: Tensor
    state: Tensor
    last: Tensor
    step: Tensor
    rule: UpdateRule


class Taken(NamedTuple):
    """A batch of fixed size. Rows beyond the end repeat the first one, with weight 0, and so change nothing.

    Shape: ids (B, F), numeric (B, M), labels (B,), weights (B,).
    """

    ids: Tensor
    numeric: Tensor
    labels: Tensor
    weights: Tensor

    @property
    def features(self) -> Features:
        return Features(self.ids, self.numeric)

    @property
    def groups(self) -> None:
        """Losses that compare the rows of a group have batches of other sizes."""


class Segments(NamedTuple):
    """Looked-up rows in sorted order; equal ones are a segment.

    Shape: rows (N,), places (N,) of them before sorting, starts (N + 1,) of segments and N from the last one on,
    distinct () how many segments there are.
    """

    rows: Tensor
    places: Tensor
    starts: Tensor
    distinct: Tensor


class Gradient(NamedTuple):
    """The gradient of looked-up rows inside a matrix: place n is row n // F, from the column ``first[n % F]`` on.

    Shape: matrix (B, L), first (F,).
    """

    matrix: Tensor
    first: Tensor
    width: int


class Numbers(NamedTuple):
    """What a step's updates share, on the device.

    Shape: step () int64; now (4,) float64: a_t / (1 - β1^t), sqrt(1 - β2^t), 1 - d_t, a_t; scale (models,), what the
    clip multiplies gradients with.
    """

    step: Tensor
    now: Tensor
    scale: Tensor


def take_batch(source: Taken, order: Tensor, start: Tensor, batch_size: int) -> Taken:
    """The rows ``order[start : start + batch_size]`` of a whole split; of each order where there are several."""
    places = start + torch.arange(batch_size, device=order.device)
    real = places < order.shape[-1]
    rows = order[..., torch.where(real, places, start)]
    return Taken(
        source.ids[rows], source.numeric[rows], source.labels[rows], source.weights[rows % len(source.weights)] * real
    )


def embed(ids: Tensor, numeric: Tensor, rows: Rows, columns: Columns, padded_dim: int, dtype: torch.dtype) -> Tensor:
    """x0 with a column of ones behind it, then zeros: (B, F), (B, M) -> (B, L)."""
    id_ = ids[:, columns.feature].long()  # (B, embedded columns)
    places = columns.base + id_ * columns.width
    means = len(rows.state) // len(rows.weight) * (places - columns.within) + columns.within
    row = (columns.first_row + id_).flatten()
    weight, mean, square = rows.weight[places], rows.state[means], rows.state[means + columns.width]
    rate = rows.rule.rate(row, len(rows.last))
    moved = Moved(weight.view(-1, 1), mean.view(-1, 1), square.view(-1, 1), None)
    rows.rule.age(moved, since=rows.last[row], now=int(rows.step), rate=rate)
    x0 = torch.cat([weight, numeric, numeric.new_ones(len(ids), 1)], dim=1)  # (B, D + 1)
    return F.pad(x0, (0, padded_dim - x0.shape[1])).to(dtype)


def cross(x0: Tensor, u: Tensor, xl: Tensor) -> Tensor:
    """x0 ⊙ u + xl, with u = W xl + b."""
    return (x0.float() * u.float() + xl.float()).to(x0.dtype)


def cross_backward(
    gradient: Tensor, x0: Tensor, u: Tensor, gathered: Tensor | None, *, input_dim: int, carried: bool
) -> tuple[Tensor, Tensor]:
    """The gradients by u, zero in the padding, and by x0 where it is a factor, added to what is gathered already.

    ``carried`` adds the incoming gradient too: the first layer's xl is x0.
    """
    g = gradient.float()
    by_u = g * x0.float()
    by_u[..., input_dim:] = 0
    by_x0 = g * u.float() + (g if carried else 0.0) + (0.0 if gathered is None else gathered.float())
    return by_u.to(x0.dtype), by_x0.to(x0.dtype)


def relu_backward(gradient: Tensor, h: Tensor, by_bias: Tensor) -> Tensor:
    """Through h = relu(z): the gradient by z; its sum over rows is written to ``by_bias``."""
    by_z: Tensor = torch.ops.aten.threshold_backward(gradient, h, 0)
    by_bias.copy_(by_z.float().sum(dim=-2))
    return by_z


def head(x: Tensor, weight: Tensor, start: Tensor) -> Tensor:
    """start + x · weight in float32; x may be wider than the weight: (B, L), (K,) -> (B,)."""
    return start + (x[..., : weight.shape[-1]].float() @ weight[..., None])[..., 0]


def head_backward(x: Tensor, weight: Tensor, by_logits: Tensor, by_weight: Tensor, by_bias: Tensor | None) -> Tensor:
    """The gradient by x; that by the weight is written to ``by_weight``.

    With ``by_bias``, x is relu(z): the gradient is then by z, and its sum over rows is written there.
    """
    width = weight.shape[-1]
    by_weight.copy_((by_logits[..., None, :] @ x[..., :width].float())[..., 0, :])
    by_x = F.pad(by_logits[..., None] * weight[..., None, :], (0, x.shape[-1] - width))  # (B, L)
    if by_bias is not None:
        by_x = torch.ops.aten.threshold_backward(by_x, x.float(), 0)
        by_bias.copy_(by_x.sum(dim=-2))
    return by_x.to(x.dtype)


def loss_and_gradient(loss: Loss, logits: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The loss and its gradient by the logits: () and (B,), of several models (models,) and (models, B)."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        value = loss(leaf, labels, weights)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), gradient


def sum_segments(segments: Segments, gradient: Gradient) -> tuple[Tensor, Tensor]:
    """The gradient of each distinct row, and its squared length: (N, width) and (N,), zero behind the last segment."""
    matrix, first, width = gradient
    size, features = len(segments.rows), len(first)
    columns = first[segments.places % features].long()[:, None] + torch.arange(width, device=matrix.device)
    vectors = matrix[segments.places // features][:, :].gather(1, columns).float()  # (N, width)
    number = torch.bucketize(torch.arange(size, device=matrix.device), segments.starts[:-1], right=True) - 1
    number = number.clamp(max=size - 1)
    total = matrix.new_zeros(size, width, dtype=torch.float32).index_add_(0, number, vectors)
    return total, total.square().sum(dim=1)


def squares(values: Tensor) -> Tensor:
    """What sums up to the squared length of each row: (models, P) -> (models, any number)."""
    return values.square().sum(dim=1, keepdim=True)


def begin_update(step: Tensor, dense: Tensor, rows: Tensor, rule: UpdateRule, *, clip_norm: float) -> Numbers:
    """Count the step, and work out what its updates share.

    Shape: dense (models, any number), rows (models,): what a model's gradient has for a squared length, in parts.
    """
    step += 1
    t, (beta1, beta2) = int(step), BETAS
    factor = rule.factor(t)
    now = [factor / (1 - beta1**t), math.sqrt(1 - beta2**t), 1 - float(decay_at(t, rule.decay)), factor]
    norm = (dense.sum(dim=1) + rows).sqrt()
    scale = (clip_norm / (norm + 1e-6)).clamp(max=1.0) if clip_norm else torch.ones_like(norm)
    return Numbers(step, torch.tensor(now, dtype=torch.float64, device=step.device), scale.float())


def adam(
    weight: Tensor, mean: Tensor, square: Tensor, average: Tensor | None, copy: Tensor | None, gradient: Tensor,
    numbers: Numbers, rule: UpdateRule,
) -> None:  # fmt: skip
    """The rule for dense weights; ``copy`` is theirs in another type. Shape: all (models, P)."""
    rate, clipped = rule.on(weight.device).rates[:, None], gradient * numbers.scale[:, None]
    rule.step(Moved(weight, mean, square, average), clipped, step=int(numbers.step), rate=rate)
    if copy is not None:
        copy.copy_(weight)


def read_rows(table: LazyTable, rows: Tensor, step: Tensor) -> Tensor:
    """Rows of a table as they are after this step, each at its place: (N,) -> (N, width)."""
    return table.read(rows, int(step)).weight.detach()


def adam_rows(table: LazyTable, segments: Segments, total: Tensor, numbers: Numbers) -> None:
    """The rule for the distinct rows of the segments."""
    count, step = int(segments.distinct), int(numbers.step)
    rows = segments.rows[segments.starts[:count]].long()  # (U,)
    model = rows // max(len(table.weight) // len(numbers.scale), 1)
    touched = table.read(rows, step - 1)
    touched.weight.grad = total[:count] * numbers.scale[model][:, None]
    table.update(touched, step=step)


def sort_rows(rows: Tensor) -> Segments:
    """Bring equal rows together: (N,)."""
    ordered, places = rows.sort()
    size = len(rows)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    number = first.cumsum(0)  # from 1 on
    every = torch.arange(size, device=rows.device)
    starts = torch.full((size + 1,), size, device=rows.device)
    # Places inside a segment write N at the end, where it stands already.
    starts.scatter_(0, torch.where(first, number - 1, size), torch.where(first, every, size))
    return Segments(ordered, places, starts, number[-1])
