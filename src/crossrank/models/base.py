"""What every model is: features -> x0 -> logits."""

from __future__ import annotations

import abc
import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from crossrank.nn import CrossNetwork, DeepNetwork, FeatureEmbedding, Features, OutputLayer, PairProducts
from crossrank.nn.embedding import embedding_layers
from crossrank.schema import InputLayout, LabelKind

LABEL_UNITS = {"label_mean": 0.0, "label_deviation": 1.0, "label_low": -math.inf, "label_high": math.inf}
SPECIAL_IDS = 2  # the first ids of each vocabulary: missing and unseen


class Terms(NamedTuple):
    """``logit = Σ_i w_i·cross_i(x0) + w·deep(x0) + w·deep(quadratic(x0)) + linear + bias``: what makes a logit of x0.

    Where ``below`` has cross networks, the deep one reads what they make of x0, side by side, instead of x0. A
    quadratic is any map (B, D) -> (B, M) whose elements are polynomials of degree two, and has a network of its own.
    The linear term has weights of its own: what each column adds, features -> (B, number of columns).
    """

    bias: Tensor
    crosses: Sequence[tuple[CrossNetwork, Tensor]] = ()
    deep: tuple[DeepNetwork, Tensor] | None = None
    below: Sequence[CrossNetwork] = ()
    quadratic: tuple[Callable[[Tensor], Tensor], DeepNetwork, Tensor] | None = None
    linear: Callable[[Features], Tensor] | None = None


class Model(nn.Module, abc.ABC):
    """A network that turns the features of B rows into B logits.

    ``forward`` embeds the features into x0 and asks :meth:`logits` for the rest, so a subclass describes only what it
    does with x0. A model with a second table (a linear term, say) overrides ``forward``. How to bring one of your own
    stands in :mod:`crossrank.models.own`.

    The logit of a label that is a number is that number less its mean, divided by its deviation in the training rows;
    that of a binary one may be shifted by class weights or sampled negatives (:mod:`crossrank.training.prior`).
    :meth:`in_units` gives the number itself, or the logit without the shift; :meth:`predict_logits` the nearest one in
    the range of the training rows, or as sure as so many rows allow.

    A label with several classes or tasks has a logit for each, from a wider output layer; models that add other terms
    to it, and those that do not say ``takes_classes``, refuse such a label. A model that has more of its own for each
    logit says ``has_towers``, and is made with ``num_outputs``.

    Shape: features of B rows -> (B,), or (B, K) for K classes or tasks.
    """

    takes_classes: ClassVar[bool] = False  # its answer is ``self.output``, an OutputLayer, of something
    has_towers: ClassVar[bool] = False
    num_outputs: int = 1
    label_mean: Tensor
    label_deviation: Tensor
    label_low: Tensor
    label_high: Tensor

    def __init__(self, layout: InputLayout, *, embedding_dropout: float = 0.0) -> None:
        super().__init__()
        self.layout = layout
        self.embedding = embed(layout, dropout=embedding_dropout)
        for name, value in LABEL_UNITS.items():
            self.register_buffer(name, torch.tensor(value))

    def forward(self, features: Features) -> Tensor:
        x0: Tensor = self.embedding(features)  # (B, D)
        return self.logits(x0)

    @abc.abstractmethod
    def logits(self, x0: Tensor) -> Tensor:
        """(B, D) -> (B,)"""

    def head_logits(self, x0: Tensor) -> Tensor:
        """(B, D) -> (B, M): the logit of each path of the model; their mean is the logit. Most have one path.

        Paths can have losses of their own (:mod:`crossrank.training.heads`). Where the logit is linear in what the
        paths make, :func:`path_logits` says what each answers.
        """
        return self.logits(x0).unsqueeze(-1)

    def heads(self, features: Features) -> Tensor:
        """The same of features, as ``forward`` is of ``logits``; a model with its own ``forward`` overrides both."""
        return self.head_logits(self.embedding(features))

    def terms(self) -> Terms | None:
        """How the logit is made of networks on x0, where it is nothing else, so that a ranker may take it apart."""
        return None

    def kernels(self) -> Iterator[nn.Parameter]:
        """The weights that the penalty λ Σ ||W||² counts: of cross and deep layers alone.

        No tables, whatever they are called: only the rows that a batch reads could be counted. No biases, gates, norms.
        """
        exempt, tables = ("embedding.", "fields.", "linear.", "output."), {id(table.weight) for table in self.tables()}
        for name, parameter in self.named_parameters():
            of_kind = {"gate", "norm"} & set(name.split("."))
            listed = not name.startswith(exempt) and not of_kind and not name.endswith("bias")
            if listed and id(parameter) not in tables:
                yield parameter

    def cross_networks(self) -> list[CrossNetwork]:
        """The cross networks fed with x0, for explanations; none in most baselines. Others are told by their width."""
        networks = (module for module in self.modules() if isinstance(module, CrossNetwork))
        return [network for network in networks if network.input_dim == self.layout.input_dim]

    def cross_layers(self) -> Iterator[tuple[int, int, Any]]:
        """The number of its network, its own number in it, both counted from 1, and each layer of these networks."""
        for number, network in enumerate(self.cross_networks(), start=1):
            for depth, layer in enumerate(network.layers, start=1):
                yield number, depth, layer

    def pools(self) -> dict[Any, PairProducts]:
        """The cross layers whose products are pooled by pairs of features for other layers, and what pools them."""
        return {}

    @property
    def members(self) -> Sequence[Model]:
        """The models whose answers are averaged; mostly the model itself."""
        return [self]

    def tables(self) -> list[FeatureEmbedding]:
        """Every embedding table of the model; their features are ``layout.embedded``, in that order."""
        return embedding_layers(self)

    @torch.no_grad()
    def fill_untrained_rows(self, counts: Mapping[str, ArrayLike]) -> None:
        """Give the missing and unseen ids that no training row used the mean vector of their feature.

        Such rows would otherwise keep their random initial value, and every unseen value would be scored with noise.
        The mean is weighted by how often each id occurred in training, so an unseen value counts as an average one.

        Args:
            counts: for each embedded feature, how often each of its ids occurred in the training rows.
        """
        for i, slot in enumerate(self.layout.embedded):
            seen = torch.as_tensor(counts[slot.name], dtype=torch.float64)  # (v,)
            untrained = (seen[:SPECIAL_IDS] == 0).nonzero()[:, 0]
            if len(untrained) == 0 or seen.sum() == 0:
                continue
            for table in (embedding.table(i) for embedding in self.tables()):
                share = (seen / seen.sum()).to(table)
                table[untrained.to(table.device)] = share @ table  # (e,)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        for name, value in LABEL_UNITS.items():  # older runs have none: their logits are the numbers
            state_dict.setdefault(prefix + name, torch.tensor(value))
        super()._load_from_state_dict(state_dict, prefix, *others)

    def in_units(self, logits: Tensor) -> Tensor:
        """Logits in units of the label, where that is a number, or without what its classes' weights did to them."""
        return logits * self.label_deviation + self.label_mean

    def bounded_logits(self, features: Features) -> Tensor:
        """The nearest ones in units of the label that lie in the range of the training rows; (B,) or (B, K)."""
        return self.in_units(self(features)).clamp(self.label_low, self.label_high).float()

    @torch.no_grad()
    def predict_logits(self, batches: Iterable[Features]) -> Tensor:
        """Logits of all rows, in units of the label, without dropout and without a graph; on the CPU."""
        with evaluating(self):
            logits = [self.bounded_logits(features).cpu() for features in batches]
        return torch.cat(logits) if logits else torch.empty((0, self.num_outputs) if self.num_outputs > 1 else 0)


class SideBySide(Model):
    """``logit = wᵀ [h_1; …; h_M] + b``: paths side by side under ``self.output``, each with a head of its own.

    Shape: features of B rows -> (B,), or (B, K) for K classes or tasks.
    """

    takes_classes = True
    output: OutputLayer

    @abc.abstractmethod
    def paths(self, x0: Tensor) -> list[Tensor]:
        """What stands side by side under the output layer: (B, D) -> (B, H_m) each."""

    def logits(self, x0: Tensor) -> Tensor:
        logits: Tensor = self.output(torch.cat(self.paths(x0), dim=1))  # (B, ΣH) -> (B,)
        return logits

    def head_logits(self, x0: Tensor) -> Tensor:
        return path_logits(self.output, self.paths(x0))


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, a model answers without dropout; afterwards it trains again if it did."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def path_logits(output: OutputLayer, parts: Sequence[Tensor]) -> Tensor:
    """``y_m = M w_m·h_m + b`` of the paths h_1 … h_M under one output layer; their mean is wᵀ [h_1; …; h_M] + b.

    Shape: (B, H_m) each -> (B, M).
    """
    weights = torch.split(output.weight[0], [part.shape[-1] for part in parts])
    products = torch.stack([part @ weight for part, weight in zip(parts, weights, strict=True)], dim=-1)  # (B, M)
    return len(parts) * products + (0.0 if output.bias is None else output.bias)


def with_first(heads: Tensor, term: Tensor) -> Tensor:
    """The paths' logits where the first path has one more term of the logit: (B, M), (B,) -> (B, M)."""
    count = heads.shape[-1]
    return torch.cat([heads[:, :1] + count * term[:, None], heads[:, 1:]], dim=1)


def alone(
    quadratic: Callable[[Tensor], Tensor], bias: Tensor
) -> tuple[Callable[[Tensor], Tensor], DeepNetwork, Tensor]:
    """A quadratic that is itself a term of the logit beside a bias, (B, D) -> (B,), as :class:`Terms` has it."""
    return (lambda x0: quadratic(x0)[:, None]), DeepNetwork(1, sizes=()), torch.ones_like(bias)


def answers_of(logits: Tensor, kind: LabelKind) -> Tensor:
    """Probabilities, or the numbers themselves where the label is one."""
    if kind == "classes":
        return logits.softmax(dim=-1)
    return logits.sigmoid() if kind in ("binary", "tasks") else logits


def embed(layout: InputLayout, *, dropout: float = 0.0) -> FeatureEmbedding:
    """The embedding layer that makes x0 as the layout says."""
    return FeatureEmbedding(
        [slot.vocab_size for slot in layout.embedded],
        [slot.width for slot in layout.embedded],
        num_multivalent=len(layout.of_kind("multivalent")),
        num_numeric=layout.num_numbers,
        dropout=dropout,
    )
