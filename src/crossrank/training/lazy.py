"""Adam, clip and average for an embedding table, on the rows that a step touched.

A step of B rows with F features touches at most B F rows of a table of millions. Here nothing else is read or written:

- the gradient of a touched row is the sum over its occurrences in the batch;
- Adam's m, v and the weight change for touched rows alone. The textbook's Adam also moves untouched rows along their
  old momentum; that is the one difference from ``dense``;
- an untouched row's weight stays, so its moving average after steps s + 1 … t has a closed form,

      w̄_t = w + P(s, t) (w̄_s - w),      P(s, t) = Π_{k=s+1}^{t} d_k,      d_k = min(decay, (1 + k) / (10 + k))

  and is caught up when the row is next touched or read. While d_k = (1 + k) / (10 + k) the product telescopes to
  Π_{j=2}^{10} (s + j) / (t + j); from then on it is a power of the decay.

Cost: proportional to the number of distinct rows in the batch, whatever the size of the table.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from crossrank.nn import FeatureEmbedding

BETAS, EPSILON = (0.9, 0.999), 1e-8  # Adam's own


def decay_at(step: int, decay: float) -> float:
    """d_t: how much of the average stays at step t."""
    return min(decay, (1 + step) / (10 + step))


def decay_product(start: Tensor, stop: int, decay: float) -> Tensor:
    """P(s, t) for many s; 1 where s = t.

    >>> decay_product(torch.tensor([0, 1, 2]), 2, 0.5)
    tensor([0.0455, 0.2500, 1.0000], dtype=torch.float64)
    """
    change = _last_warm_step(decay)
    warm_start, warm_stop = start.double().clamp(max=change), min(stop, change)  # the part where d_k = (1+k)/(10+k)
    product = torch.ones_like(warm_start)
    for j in range(2, 11):
        product *= (warm_start + j) / (warm_stop + j)
    return product * decay ** (stop - start.double().clamp(min=warm_stop))


def _last_warm_step(decay: float) -> int:
    """The last k with (1 + k) / (10 + k) < decay."""
    change = max(int((10 * decay - 1) / (1 - decay)) - 2, 0)
    while (2 + change) / (11 + change) < decay:
        change += 1
    return change


@dataclasses.dataclass
class Touched:
    """The distinct rows that a step touched, and the gradient of each. Shape: rows (U,), gradient (U, width)."""

    table: LazyTable
    rows: Tensor
    gradient: Tensor


class LazyTable:
    """One (rows, width) table with its optimiser state.

    Args:
        weight: the table; changed in place.
        decay: of the moving average; 0 for none.
    """

    def __init__(self, weight: Tensor, *, decay: float) -> None:
        self.weight, self.decay = weight.detach(), decay
        num_rows, width = weight.shape
        self.width = width
        parts = 3 if decay else 2
        self.state = weight.new_zeros(num_rows, parts * width)  # m, v and the average of a row lie side by side
        if decay:
            self.state[:, 2 * width :] = self.weight
        self.last = torch.zeros(num_rows if decay else 0, dtype=torch.int64)  # the step a row's average belongs to
        self.owner = torch.zeros(num_rows, dtype=torch.int32)

    def touched(self, rows: Tensor, gradient: Tensor) -> Touched:
        """Sum the gradients of equal rows: (N,), (N, width) -> U distinct ones.

        Each place writes its number at its row; the place whose number stays speaks for all equal ones. Unlike sorting,
        this is linear in N.
        """
        places = torch.arange(len(rows), dtype=torch.int32)
        self.owner[rows] = places
        speaker = self.owner[rows]  # (N,)
        speaks = speaker == places
        compact = (speaks.cumsum(0, dtype=torch.int32) - 1)[speaker.long()]  # (N,), the number of its distinct row
        distinct = rows[speaks]
        summed = gradient.new_zeros(len(distinct), self.width).index_add_(0, compact, gradient)
        return Touched(self, distinct, summed)

    def update(self, rows: Tensor, gradient: Tensor, *, step: int, learning_rate: float) -> None:
        """One step of Adam and of the average for the touched rows."""
        beta1, beta2 = BETAS
        state = self.state[rows]  # (U, parts width)
        mean, square, *average = torch.split(state, self.width, dim=1)
        old = self.weight[rows]  # (U, width)
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        spread = square.sqrt().div_((1 - beta2**step) ** 0.5).add_(EPSILON)
        new = old.addcdiv(mean, spread, value=-learning_rate / (1 - beta1**step))
        for kept in average:
            behind = decay_product(self.last[rows], step - 1, self.decay).to(kept)[:, None]  # (U, 1)
            kept.sub_(old).mul_(behind).add_(old)
            kept.lerp_(new, 1 - decay_at(step, self.decay))
            self.last[rows] = step
        self.weight[rows] = new
        self.state[rows] = state

    def catch_up(self, step: int) -> Tensor:
        """The average of every row as of this step: (rows, width)."""
        average = self.state[:, 2 * self.width :]
        behind = decay_product(self.last, step, self.decay).to(average)[:, None]
        average.sub_(self.weight).mul_(behind).add_(self.weight)
        self.last.fill_(step)
        return average


def lazy_tables(embedding: FeatureEmbedding, *, decay: float) -> list[LazyTable]:
    """The tables of an embedding layer, from now on trained by the rows they touch."""
    embedding.lookups = []
    return [LazyTable(table, decay=decay) for table in embedding.tables]


def collect(embedding: FeatureEmbedding, tables: list[LazyTable]) -> list[Touched]:
    """What the last forward and backward passes touched; the record is emptied."""
    lookups, embedding.lookups = embedding.lookups or [], []
    touched = []
    for number, table in enumerate(tables):
        mine = [lookup for lookup in lookups if lookup.table == number and lookup.vectors.grad is not None]
        if mine:
            rows = torch.cat([lookup.rows for lookup in mine])
            touched.append(table.touched(rows, torch.cat([lookup.vectors.grad for lookup in mine])))  # type: ignore[misc]
    return touched
