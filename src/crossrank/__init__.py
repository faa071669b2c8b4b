"""Train, measure and explain models that cross features.

Example::

    import crossrank as cr

    run = cr.train("clicks.csv", into="runs/first")
    cr.evaluate(run, "later.csv")["logloss"]
    cr.explain(run, top=10)
    run.predict([{"user": "u7", "country": "pt", "hour": 9}])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossrank.data import EncodedDataset, Encoder
    from crossrank.evaluation import evaluate, explain
    from crossrank.experiments.promote import promote
    from crossrank.runs import Run
    from crossrank.schema import Schema
    from crossrank.serving.client import Client
    from crossrank.serving.export import export
    from crossrank.serving.ranker import Ranker
    from crossrank.serving.scorer import Scorer
    from crossrank.training.train import train

__version__ = "0.2.0"
__all__ = [
    "Client",
    "EncodedDataset",
    "Encoder",
    "Ranker",
    "Run",
    "Schema",
    "Scorer",
    "evaluate",
    "explain",
    "export",
    "promote",
    "train",
]

_ROOMS = {
    "Client": "serving.client",
    "EncodedDataset": "data",
    "Encoder": "data",
    "Ranker": "serving.ranker",
    "Run": "runs",
    "Schema": "schema",
    "Scorer": "serving.scorer",
    "evaluate": "evaluation",
    "explain": "evaluation",
    "export": "serving.export",
    "promote": "experiments.promote",
    "train": "training",
}


def __getattr__(name: str) -> Any:
    """Import a room when its name is first used, so that ``import crossrank.nn`` stays light."""
    if name in _ROOMS:
        return getattr(import_module(f"crossrank.{_ROOMS[name]}"), name)
    raise AttributeError(f"module 'crossrank' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
