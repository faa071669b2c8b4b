"""A network of your own, with our loop, metrics, run folders and reports.

A model is a subclass of :class:`Model` that is given a name::

    import dataclasses

    from torch import nn

    import crossrank as cr
    from crossrank.config import setting
    from crossrank.models import Model, ModelSettings, register_model


    @dataclasses.dataclass(frozen=True, kw_only=True)
    class TowerSettings(ModelSettings):  # only where it has settings of its own
        width: int = setting(64, "neurons of the hidden layer")


    @register_model("tower", settings=TowerSettings, about="one hidden layer on x0")
    class Tower(Model):
        def __init__(self, layout, settings):  # layout: which slice of x0 is which feature
            super().__init__(layout, embedding_dropout=settings.embedding.dropout)
            self.hidden = nn.Linear(layout.input_dim, settings.width)
            self.output = nn.Linear(settings.width, 1)

        def logits(self, x0):  # (B, D) -> (B,)
            return self.output(self.hidden(x0).relu())[:, 0]


    run = cr.train("clicks.csv", into="runs/tower", config={"model": {"name": "tower", "width": 32}})

From then on the name works wherever a model's name does, and so do its settings. A run folder holds the name, the
settings and the weights, never code: import the module that registers the class before opening the run elsewhere.

- ``logits`` gets x0 as ``embedding`` makes it. Set ``self.embedding`` to a module of your own, from :class:`Features`
  to (B, ``layout.input_dim``), to embed in another way, or override ``forward`` to read the features yourself.
- A cross layer of your own is a subclass of :class:`~crossrank.nn.BaseCrossLayer` or of one of its kinds, as in
  ``CrossNetwork(layout.input_dim, num_layers=2, layer=Gated)``; its crosses are explained where it has ``matrix``.
- ``cross_networks``, ``kernels`` and ``tables`` of :class:`Model` say what is explained, what ``training.l2`` counts,
  and which tables have a row for each value; override them where their rules do not fit.
- On a GPU a step is captured as one graph, so ``forward`` may not look at values there (``.item()``, ``if x.any()``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import TypeVar

from torch import Tensor

from crossrank.errors import ConfigError, ShapeError
from crossrank.models.base import Model, evaluating
from crossrank.models.build import BUILT_IN, MODELS, Entry
from crossrank.models.settings import ModelSettings
from crossrank.nn import Features
from crossrank.nn.cross_base import label_of

AnyModel = TypeVar("AnyModel", bound=type)


def register_model(
    name: str, *, settings: type[ModelSettings] = ModelSettings, about: str = "a model from outside crossrank"
) -> Callable[[AnyModel], AnyModel]:
    """Give a model class of your own a name; a decorator. See the head of this file.

    Args:
        name: what ``model.name`` of a configuration calls it. To register a name again replaces its class.
        settings: the class of its settings, a frozen dataclass below :class:`ModelSettings`.
        about: a line for lists of models and for reports.

    Raises:
        ConfigError: for the name of one of crossrank's models, or a class that is not a :class:`Model`.
    """
    if name in BUILT_IN:
        raise ConfigError(f"A model of your own needs a name of its own; got '{name}', which is one of crossrank's.")

    def register(cls: AnyModel) -> AnyModel:
        if not issubclass(cls, Model):
            raise ConfigError(
                f"A model must be a subclass of crossrank.models.Model; got {cls.__name__}.",
                hint="Let a subclass hold it in an attribute, and call it in logits(x0).",
            )
        MODELS[name] = Entry(cls, settings, about)
        return cls

    return register


def unexplained(model: Model) -> list[str]:
    """A sentence about each kind of cross layer that does not tell its matrix."""
    layers = [layer for _, _, layer in model.cross_layers() if not getattr(layer, "tells_matrix", False)]
    return [
        f"Cross layers of the kind {kind} do not tell their matrix, so their crosses cannot be listed; "
        "give the class a method matrix(xl)."
        for kind in dict.fromkeys(map(label_of, layers))
    ]


def check_model(model: Model, batches: Iterable[Features]) -> None:
    """Try a model on a few rows, before hours of training end in an error or in nothing learned.

    What will not be explained is no error: it is told as a warning.

    Raises:
        ShapeError: where it does not answer with a logit for each row, or where no weight moves them.
    """
    name = type(model).__name__
    with evaluating(model):
        for features in batches:
            count, logits = len(features.categorical), model(features)
            shape = (count,) if model.num_outputs == 1 else (count, model.num_outputs)
            if not isinstance(logits, Tensor) or logits.shape != shape or not logits.is_floating_point():
                got = (
                    f"{logits.dtype} of shape {tuple(logits.shape)}"
                    if isinstance(logits, Tensor)
                    else repr(logits)[:60]
                )
                raise ShapeError(
                    f"{name} must give {count} rows floating-point logits of shape {shape}; got {got}.",
                    hint="Name the axis to drop, as in logits[:, 0]: squeeze() would also drop that of a single row.",
                )
            if not logits.requires_grad:
                raise ShapeError(f"The logits of {name} must depend on its weights; got some without a gradient.")
    for sentence in unexplained(model):
        warnings.warn(sentence, stacklevel=5)  # to whoever called train
