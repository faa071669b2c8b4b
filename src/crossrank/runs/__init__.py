"""The run folder: the only thing that is ever saved."""

from crossrank.runs.run import Run
from crossrank.runs.writing import write_run

__all__ = ["Run", "write_run"]
