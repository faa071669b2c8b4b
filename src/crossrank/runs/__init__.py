"""The run folder: the only thing that is ever saved."""

from crossrank.runs.run import Run, write_run

__all__ = ["Run", "write_run"]
