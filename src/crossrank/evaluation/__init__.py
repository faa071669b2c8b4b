"""How well a model does, and what its crosses say."""

from crossrank.evaluation.crosses import explain
from crossrank.evaluation.evaluate import evaluate
from crossrank.evaluation.row_explanation import explain_row

__all__ = ["evaluate", "explain", "explain_row"]
