"""The licence of each package that crossrank needs, with and without extras, as a table.

python benchmarks/licences.py
"""

from __future__ import annotations

import importlib.metadata as metadata
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
OTHERS = ("dev", "docs", "browser")  # which nobody needs who uses the library


def licence_of(name: str) -> str:
    """As the installed package declares it."""
    about = metadata.metadata(name)
    classes = [line.split(" :: ")[-1] for line in about.get_all("Classifier") or [] if line.startswith("License")]
    return about.get("License-Expression") or ", ".join(classes) or (about.get("License") or "not declared")[:60]


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {"everything": project["dependencies"], **project["optional-dependencies"]}
    print("| package | needed for | licence |\n| --- | --- | --- |")
    for extra, lines in needed.items():
        for name in (re.split(r"[^\w-]", line)[0] for line in lines if extra not in OTHERS):
            if name != "crossrank":
                print(f"| {name} | {extra} | {licence_of(name)} |")


if __name__ == "__main__":
    main()
