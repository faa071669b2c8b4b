"""The few items of a catalogue that may be a request's best, where a logit is an inner product.

All but ``tᵀ M(c) s`` of an item's logit is one product with its row, read once at the speed of the memory. What is left
lies within ``‖M(c)‖ ‖s‖ ‖t‖`` of zero, ‖s‖ ‖t‖ being known of the item. So what an item reaches at most is known, and
items that may reach what k others have are scored; no other can be among the best k.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossrank.data.rows import SCORING_ROWS, EncodedRows, Positions
from crossrank.serving.pairing import KnownItems, Pairing, mean
from crossrank.serving.threads import READ, side_by_side

FEWEST = 20_000  # items, below which scoring all takes no longer
SOME = 512  # items that are scored first
ROUNDING = 1e-5  # of a logit, or of one where it is smaller


class Pruning:
    """What is known of a catalogue's items beside their rows: ‖s‖ ‖t‖ of each term, (N, terms)."""

    def __init__(self, pairing: Pairing, known: KnownItems) -> None:
        self.pairing, self.known = pairing, known
        with torch.inference_mode():
            self._reach = torch.cat([self._reach_of(part) for part in torch.split(known.rows, SCORING_ROWS)])

    @classmethod
    def of(cls, pairing: Pairing, known: object) -> Pruning | None:
        """None where every item is scored."""
        terms = [term for split in pairing.splits for term in split.inner_products]
        inner = all(split.inner_products for split in pairing.splits) and any(term.has_middle for term in terms)
        return cls(pairing, known) if inner and isinstance(known, KnownItems) and len(known) >= FEWEST else None

    def _reach_of(self, rows: Tensor) -> Tensor:
        each = zip(self.pairing.splits, self.pairing.of_members(rows), strict=True)
        return torch.cat([split.reach(one) for split, one in each], dim=1)

    @torch.inference_mode()
    def promising(self, context: EncodedRows, k: int, allowed: NDArray[np.bool_] | None) -> Positions:
        """The places of items that may be among the best k of those allowed, in order."""
        pairing, splits, rows = self.pairing, self.pairing.splits, self.known.rows
        requests = pairing.requests(context)

        def multiply(start: int) -> Tensor:
            each = zip(splits, requests, pairing.of_members(rows[start : start + SCORING_ROWS]), strict=True)
            return mean([split.flat(request, one)[0] for split, request, one in each])

        calls = [partial(multiply, start) for start in range(0, len(rows), SCORING_ROWS)]
        flat = torch.cat(side_by_side(calls, READ * rows.numel()))
        middles = [state.middle for request in requests for state in request.states]
        norms = [0.0 if one is None else torch.linalg.matrix_norm(one[0], 2).item() for one in middles]
        most = flat + self._reach @ (self._reach.new_tensor(norms) / len(splits))
        if allowed is not None:
            most[~torch.from_numpy(allowed)] = -torch.inf
        first = torch.topk(most, min(max(k, SOME), len(most))).indices.numpy()
        if allowed is not None:
            first = first[allowed[first]]
        scored = pairing.logits(context, self.known.take(first))[0]
        least = torch.topk(scored, k).values[-1] if k <= len(scored) else scored.new_tensor(-torch.inf)
        enough = pairing.bounded(most) >= least - ROUNDING * least.abs().clamp_min(1)
        return np.flatnonzero(enough.numpy() if allowed is None else enough.numpy() & allowed)
