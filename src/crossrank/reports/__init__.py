"""Run folders as pages that a person reads."""

from crossrank.reports.page import write_report

__all__ = ["write_report"]
