"""How well a model does, and what its crosses say."""

from crossrank.evaluation.crosses import explain
from crossrank.evaluation.evaluate import evaluate

__all__ = ["evaluate", "explain"]
