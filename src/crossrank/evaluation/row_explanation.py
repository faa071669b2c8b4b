"""Why a row got its score: what each feature and each pair of features adds to its logit.

Everything is measured against the *average row* m, whose features have their mean vector over the training rows. With
u = x_0 - m, Taylor's formula with its remainder splits the logit f without a rest::

    f(x_0) = f(m)  +  Σ_i ∇_i f(m)·u_i  +  Σ_ij ∫_0^1 (1 - t) u_iᵀ H_ij(m + t u) u_j dt
             base      alone               pairs, H the Hessian of f

In a cross network alone, f is a polynomial of degree L_c + 1 in x_0 and a Gauss-Legendre sum of L_c / 2 + 1 points *is*
the integral. With one layer the pair (i, j) gets its centred products, w_i·(u_i ⊙ W_ij u_j) + w_j·(u_j ⊙ W_ji u_i).
With more layers a cross of three features is shared equally by its three pairs. Gates and activations make f smooth
instead of a polynomial; the sum then takes as many points as it needs.

Nothing of this is taken for granted: the parts are added up and compared with the logit. Where they do not meet it, and
for a deep network, whose kinks have no such formula, a pair's contribution is found by removal: by how much the logit
falls when its centred products ``u_i ⊙ W_ij (x_l - m_l)_j`` are taken out of every cross layer. Such contributions need
not add up to the logit.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from crossrank.data import Encoder
from crossrank.data.derived import rows_with_derived
from crossrank.errors import ConfigError
from crossrank.evaluation.evaluate import Trained
from crossrank.models import Model
from crossrank.models.own import unexplained
from crossrank.nn import DeepNetwork, Features
from crossrank.schema import InputLayout

POINTS = (16, 64, 256)  # of the integral; more are taken while the parts do not meet the logit
TOLERANCE = 1e-4  # of the logit, or of one where it is smaller
REMOVED_AT_ONCE = 1024  # pairs taken out in one batch


@dataclasses.dataclass(frozen=True)
class RowExplanation:
    """What makes a row's logit.

    Attributes:
        logit: of the row.
        base: of the average row.
        alone: ``{"feature", "value", "contribution"}`` of each feature, the strongest first.
        pairs: ``{"left", "right", "contribution"}`` of each pair, the strongest first; a feature with itself too.
        method: ``"exact"`` where base, alone and pairs were found to add up to the logit, within 1e-4 of it (of one,
            where it is smaller); else ``"removal"``.
        difference: the logit less base, alone and pairs, as found.
    """

    logit: float
    base: float
    alone: list[dict[str, Any]]
    pairs: list[dict[str, Any]]
    method: Literal["exact", "removal"]
    difference: float


class _Parts(NamedTuple):
    """Shape: base (), alone (k,), pairs (k, k), of which the upper triangle counts."""

    base: Tensor
    alone: Tensor
    pairs: Tensor

    @property
    def total(self) -> float:
        return float(sum(part.double().sum() for part in (self.base, self.alone, self.pairs.triu())))


def explain_row(run: Trained, row: Mapping[str, object]) -> RowExplanation:
    """The contribution of each feature and each pair to the logit of a raw row.

    Args:
        run: a run folder's :class:`Run`, of a model with cross layers.
        row: a value for each column of the schema, as :meth:`Run.predict` takes it.

    Raises:
        ConfigError: for a model without cross layers, or one that needs the removal of products from layers which do
            not tell their matrix.

    Example::

        found = explain_row(run, {"user": "u7", "country": "pt", "hour": 9})
        found.pairs[0]     # {"left": "country", "right": "hour", "contribution": 0.41}
    """
    model = run.model
    if not model.cross_networks():
        raise ConfigError(
            f"A row's crosses can be told for models with cross layers; got {type(model).__name__}.",
            hint="Train dcn-v2, dcn-mix, cross-net or dcn.",
        )
    if model.num_outputs > 1:
        raise ConfigError(
            "What moves a row's answer can be told for one logit; got a label with several classes or tasks."
        )
    features = run.encoder.encode_rows([row]).features()
    split = [_split(member, features, run.encoder) for member in model.members]
    parts = _Parts(*(torch.stack(same).mean(dim=0) for same in zip(*(one for one, _ in split), strict=True)))
    exact = all(exact for _, exact in split)
    with torch.no_grad():
        logit = model.in_units(model(features)).item()
    names, pairs = model.layout.names, parts.pairs.tolist()
    (values,) = rows_with_derived([row], run.encoder.schema)
    return RowExplanation(
        logit,
        parts.base.item(),
        _sorted(
            {"feature": slot.name, "value": _cell(run.encoder, values, slot.column), "contribution": value}
            for slot, value in zip(model.layout.slots, parts.alone.tolist(), strict=True)
        ),
        _sorted(
            {"left": names[i], "right": names[j], "contribution": pairs[i][j]}
            for i in range(len(names))
            for j in range(i, len(names))
        ),
        "exact" if exact else "removal",
        logit - parts.total,
    )


def _split(model: Model, features: Features, encoder: Encoder) -> tuple[_Parts, bool]:
    """The parts of one model's logit, and whether they are exact."""
    with torch.no_grad():
        x0 = model.embedding(features)[0].detach()  # (D,)
        logit = model.in_units(model(features)).item()
    mean = average_row(model, encoder)
    parts = _by_taylor(model, x0, mean, logit) if is_smooth(model) else None
    if parts is not None:
        return parts, True
    if problems := unexplained(model):
        raise ConfigError(
            f"What {type(model).__name__} makes of a row cannot be split among its crosses. {problems[0]}"
        )
    return _by_removal(model, x0, mean), False


def is_smooth(model: Model) -> bool:
    """Whether the logit may be a smooth function of x_0: no deep network of ours, no kinks inside the cross layers."""
    deep = any(isinstance(module, DeepNetwork) and len(module.layers) for module in model.modules())
    return not deep and all(getattr(module, "is_smooth", True) for module in model.modules())


def _cell(encoder: Encoder, row: Mapping[str, object], column: str) -> object:
    """What a row has in a column; of a cross, in each of its columns."""
    if column not in encoder.crosses:
        return row[column]
    return " x ".join(str(row[name]) for name in encoder.crosses[column].cross.of)


@torch.no_grad()
def average_row(model: Model, encoder: Encoder) -> Tensor:
    """The mean vector of each feature over the training values, and the mean of each number. Shape: (D,)."""
    parts = []
    for i, slot in enumerate(model.layout.embedded):
        counts = torch.from_numpy(encoder.counts(slot.name)).to(model.embedding.weight)  # (v,)
        parts.append(counts / counts.sum().clamp_min(1) @ model.embedding.table(i))  # (e,)
    numbers = [slots.means() for slots in encoder.numbers.values()] + [one.means() for one in encoder.crosses.values()]
    return torch.cat([*parts, *map(torch.from_numpy, numbers)])


def _by_taylor(model: Model, x0: Tensor, mean: Tensor, logit: float) -> _Parts | None:
    """The parts where they add up to the logit, else None."""
    model, x0, mean = _in_float64(model), x0.double(), mean.double()
    owners = _owners(model.layout).to(x0)  # (k, D)
    offset = x0 - mean  # (D,), u
    place = mean[None].clone().requires_grad_()
    base = model.in_units(model.logits(place))
    (slope,) = torch.autograd.grad(base.sum(), place)
    for num_points in POINTS:
        pairs = _integral(model, mean, offset, owners, num_points)
        parts = _Parts(base.detach()[0], owners @ (slope[0] * offset), pairs + pairs.T - pairs.diag().diag())
        if abs(logit - parts.total) <= TOLERANCE * max(1.0, abs(logit)):
            return parts
    return None


def _integral(model: Model, mean: Tensor, offset: Tensor, owners: Tensor, num_points: int) -> Tensor:
    """∫ (1 - t) u_iᵀ H_ij(m + t u) u_j dt by Gauss-Legendre. Shape: (k, k)."""
    pairs = mean.new_zeros(len(owners), len(owners))
    points, weights = np.polynomial.legendre.leggauss(num_points)
    for t, weight in zip((points + 1) / 2, weights / 2, strict=True):
        place = (mean + t * offset).expand(len(owners), -1).clone().requires_grad_()  # (k, D), a row for each feature
        (slope,) = torch.autograd.grad(model.in_units(model.logits(place)).sum(), place, create_graph=True)
        turn = (slope * owners * offset).sum()
        (curve,) = torch.autograd.grad(turn, place, materialize_grads=True)  # (k, D): H u_i, zero where f is linear
        pairs += weight * (1 - t) * (curve * offset) @ owners.T  # (k, k): u_iᵀ H_ij u_j
    return pairs


def _in_float64(model: Model) -> Model:
    """A copy whose weights outside the tables are float64: the check of a sum must not be one of rounding."""
    tables = model.tables()
    shared = {id(tensor) for table in tables for tensor in (*table.parameters(), *table.buffers())}
    copied = copy.deepcopy(model, {id(table): table for table in tables})
    for tensor in (*copied.parameters(), *copied.buffers()):
        if id(tensor) not in shared and tensor.is_floating_point():
            tensor.data = tensor.data.double()
    return copied


@torch.no_grad()
def _by_removal(model: Model, x0: Tensor, mean: Tensor) -> _Parts:
    owners = _owners(model.layout).to(x0)  # (k, D)
    base = model.in_units(model.logits(mean[None]))[0]
    alone = model.in_units(model.logits(mean + owners * (x0 - mean))) - base  # (k,)
    seen: dict[nn.Module, tuple[Tensor, ...]] = {}
    layers: list[Any] = [layer for _, _, layer in model.cross_layers()]
    pools = model.pools().values()
    hooks = [
        module.register_forward_hook(lambda module, inputs, _: seen.update({module: inputs}))
        for module in (*layers, *pools)
    ]
    logit = _with_hooks(model, torch.stack([x0, mean]), hooks)[0]
    matrices = {layer: (layer.matrix(seen[layer][1][:1]), seen[layer][1][1]) for layer in layers}
    left, right = torch.triu_indices(len(owners), len(owners))  # (P,) each
    pairs = x0.new_zeros(len(owners), len(owners))
    for some in torch.arange(len(left)).split(REMOVED_AT_ONCE):  # type: ignore[no-untyped-call]
        i, j = left[some], right[some]
        hooks = [
            layer.register_forward_hook(_remover(layer, *matrices[layer], mean, owners[i], owners[j]))
            for layer in layers
        ]
        hooks += [pool.register_forward_hook(_pool_remover(seen[pool], some, owners[i], owners[j])) for pool in pools]
        pairs[i, j] = logit - _with_hooks(model, x0.expand(len(some), -1), hooks)
    return _Parts(base, alone, pairs)


def _remover(layer: Any, weight: Tensor, mean_xl: Tensor, mean: Tensor, left: Tensor, right: Tensor) -> Any:
    """A hook that takes the products of features i and j out of a layer's output; masks (P, D) say which."""

    def remove(_: nn.Module, inputs: tuple[Tensor, Tensor], output: Tensor) -> Tensor:
        u, v = layer.factor(*inputs) - layer.factor(mean, mean_xl), inputs[1] - mean_xl  # (P, D)
        one_way = left * u * ((right * v) @ weight.T)
        other_way = right * u * ((left * v) @ weight.T)
        twice = (left * right).any(dim=1, keepdim=True)  # a feature with itself has one block only
        left_over: Tensor = output - one_way - torch.where(twice, 0.0, other_way)
        return left_over

    return remove


def _pool_remover(seen: tuple[Tensor, ...], pairs: Tensor, left: Tensor, right: Tensor) -> Any:
    """The same for the pooled numbers of pairs (P,), one in each row; ``seen`` was pooled of the average row, too."""
    kernel, (_, mean_s), (_, mean_x) = seen

    def remove(_: nn.Module, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> Tensor:
        u, v = inputs[1] - mean_s, inputs[2] - mean_x  # (P, D)
        one_way = (left * u * ((right * v) @ kernel.T)).sum(dim=1)
        other_way = (right * u * ((left * v) @ kernel.T)).sum(dim=1)
        removed = one_way + torch.where((left * right).any(dim=1), 0.0, other_way)
        return output.index_put((torch.arange(len(pairs)), pairs), -removed, accumulate=True)

    return remove


def _with_hooks(model: Model, x0: Tensor, hooks: list[Any]) -> Tensor:
    try:
        return model.in_units(model.logits(x0))
    finally:
        for hook in hooks:
            hook.remove()


def _owners(layout: InputLayout) -> Tensor:
    """Row i is one where x_0 belongs to feature i. Shape: (k, D)."""
    widths = torch.tensor([slot.width for slot in layout.slots])
    return torch.eye(len(widths)).repeat_interleave(widths, dim=1)


def _sorted(parts: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(parts, key=lambda part: -abs(part["contribution"]))
