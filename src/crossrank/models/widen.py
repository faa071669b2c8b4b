"""A trained model with more features, whose answers are at first the same.

The vectors of new ids are zero, so whatever reads them may keep its random start and learns from the first step on. New
numbers are not zero: every weight that reads or writes their places of x0 is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from crossrank.errors import ConfigError
from crossrank.models.base import Model
from crossrank.nn import FeatureEmbedding


@torch.no_grad()
def widen(model: Model, wide: Model) -> None:
    """Give a newly built model the weights of a trained one that has some of its features.

    Raises:
        ConfigError: where the wide model's weights are not the other's with more rows and columns.
    """
    old, new = model.layout, wide.layout
    places = torch.cat(
        [torch.arange(old.input_dim)[:0], *(torch.arange(new.input_dim)[new[s.name].slice] for s in old.slots)]
    )
    numbers = [slot.slice for slot in new.of_kind("numeric") if slot.name not in old.names]
    silent = torch.zeros(new.input_dim, dtype=torch.bool)
    for part in numbers:
        silent[part] = True
    tables = {f"{name}.weight" for name, module in wide.named_modules() if isinstance(module, FeatureEmbedding)}
    weights = dict(model.state_dict())
    for name, tensor in wide.state_dict().items():
        if name in tables:
            continue
        source = weights.get(name)
        if source is None or source.dim() != tensor.dim():
            raise _refused(model, name)
        maps = []
        for dim, (before, after) in enumerate(zip(source.shape, tensor.shape, strict=True)):
            rows, quiet = _places(before, after, places, silent, model, name)
            tensor.index_fill_(dim, quiet, 0)
            maps.append(rows)
        if maps:
            tensor[torch.meshgrid(*maps, indexing="ij")] = source
        else:
            tensor.copy_(source)
    for table, source_table in zip(wide.tables(), model.tables(), strict=True):
        for i, slot in enumerate(new.embedded):
            known = [j for j, other in enumerate(old.embedded) if other.name == slot.name]
            table.table(i).copy_(source_table.table(known[0])) if known else table.table(i).zero_()


def _places(before: int, after: int, places: Tensor, silent: Tensor, model: Model, name: str) -> tuple[Tensor, Tensor]:
    """Where the entries of an axis go, and which of the new ones must be zero.

    An axis that grows holds x0 a number of times (one for each cross network), and then what does not grow.
    """
    if before == after:
        return torch.arange(after), torch.arange(0)
    narrow, width = len(places), len(silent)
    times, rest = divmod(after - before, width - narrow)
    if rest or times * narrow > before:
        raise _refused(model, name)
    starts = torch.arange(times)[:, None] * width  # (times, 1)
    others = torch.arange(times * width, after)
    return torch.cat([(starts + places).flatten(), others]), (starts + silent.nonzero()[:, 0]).flatten()


def _refused(model: Model, name: str) -> ConfigError:
    return ConfigError(
        f"A model that goes on with more features must read them from x0; {type(model).__name__} does not, in {name}.",
        hint="Train dcn-v2, dcn-mix, cross-net, cross-net-mix, dcn or dnn.",
    )
