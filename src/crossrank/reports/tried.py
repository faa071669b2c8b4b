"""What a training tried by itself, and what was promoted."""

from __future__ import annotations

from typing import Any

from crossrank.reports.markup import Markup, decimal, table, text
from crossrank.runs import Run


def tries(run: Run) -> Markup:
    """What variants and memories of pairs and columns gained that training tried by itself."""
    memories = [{**one, "what": _memory(one)} for one in run.report.get("memory", [])]
    variants = _tried("Variants", "These variants", run.report.get("variants", []))
    return Markup(variants + _tried("Memory", "Statistics of these pairs and columns", memories))


def _memory(tried: dict[str, Any]) -> str:
    dropout = [f"embedding dropout {tried['dropout']}"] if "dropout" in tried else []
    return ", ".join([*map(" x ".join, tried["of"]), *dropout])


def _tried(title: str, what: str, tried: list[dict[str, Any]]) -> Markup:
    if not tried:
        return Markup()
    verdicts = ["kept" if one["pays"] else "left out" for one in tried]
    numbers = [[one["what"], decimal(one["gain"], 5), decimal(one["error"], 5)] for one in tried]
    rows = [[*row, verdict] for row, verdict in zip(numbers, verdicts, strict=True)]
    lead = f"<p>{what} were tried: what they took off the loss of the validation rows, beside the best so far.</p>"
    return Markup(f"<h3>{title}</h3>{lead}" + table(["", "gain", "standard error", ""], rows, words=(0, 3)))


def promotion(run: Run) -> Markup:
    """What a memory of pairs was expected to gain and gained, where the run was given any."""
    found = run.report.get("promotion")
    if not found:
        return Markup()
    rows = [
        [
            " x ".join(one["columns"]),
            *(decimal(one[key], 5) for key in ("expected", "gain", "error")),
            "kept" if one["pays"] else "dropped",
        ]
        for one in found["tried"]
    ]
    headers = ["pair", "expected gain", "gain", "standard error", ""]
    lead = (
        f"<p>A memory of pairs was added to the run {text(found['source'])}: what each pair was expected to take off "
        f"the loss of a row, from the first epoch's answers, and what it took off that of the validation rows, over "
        f"{text(found['seeds'])} seeds with it and without.</p>"
    )
    return Markup("<h3>Promoted pairs</h3>" + lead + table(headers, rows, words=(0, 4)))
