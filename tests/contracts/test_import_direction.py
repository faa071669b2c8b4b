"""Imports flow downhill."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import crossrank

SOURCE = Path(crossrank.__file__).parent
ROWS = (
    ("__main__",),
    ("cli", "sklearn"),
    ("__init__",),  # the public names
    ("experiments", "reports"),
    ("training", "serving"),
    ("evaluation", "runs"),
    ("data", "models"),
    ("schema", "nn"),
    ("folders",),
    ("config", "files", "ray", "results"),
    ("shapes",),
    ("errors",),
)
HEIGHT = {room: -row for row, rooms in enumerate(ROWS) for room in rooms}
# Rooms that can be lifted out: what they may import besides the standard library.
SPARE = {
    "nn": {"torch", "crossrank.errors"},
    "schema": {"crossrank.config", "crossrank.errors", "crossrank.files"},
    "errors": set(),
}
FILES = sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each import, wherever it stands: inside functions and TYPE_CHECKING blocks too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            # A bare `import crossrank` reaches what is then taken out of it, below.
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name != "crossrank" or alias.asname)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "crossrank":
            yield node.lineno, f"crossrank.{node.attr}"
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            # `from crossrank import nn` names a room by its alias.
            names = [f"crossrank.{alias.name}" for alias in node.names] if module == "crossrank" else [module]
            yield from ((node.lineno, name) for name in names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from ((node.lineno, str(arg.value)) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def target_of(name: str) -> str | None:
    """The room that an import reaches; None outside the package and for facts such as ``crossrank.__version__``."""
    package, _, rest = name.partition(".")
    room = rest.partition(".")[0]
    if package != "crossrank" or room == "__version__":
        return None
    return room if room in HEIGHT else "__init__"


def uphill(source: str, room: str, package: tuple[str, ...]) -> list[tuple[int, str]]:
    """The imports that lead sideways or up."""
    wrong = []
    for line, name in imported(ast.parse(source), package):
        target = target_of(name)
        if target is not None and target != room and HEIGHT[target] >= HEIGHT[room]:
            wrong.append((line, name))
    return wrong


def package_of(path: Path) -> tuple[str, ...]:
    return ("crossrank", *path.relative_to(SOURCE).parent.parts)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_only_from_rows_below_its_own(path):
    assert room_of(path) in HEIGHT, "a new room needs a place in the order"
    assert not uphill(path.read_text(encoding="utf-8"), room_of(path), package_of(path))


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path) in SPARE], ids=lambda path: path.name)
def test_a_room_that_can_be_lifted_out_needs_little(path):
    room = room_of(path)
    for line, name in imported(ast.parse(path.read_text(encoding="utf-8")), package_of(path)):
        needed = ".".join(name.split(".")[:2]) if name.startswith("crossrank.") else name.split(".")[0]
        known = needed in SPARE[room] or needed in sys.stdlib_module_names or needed == f"crossrank.{room}"
        assert known, f"line {line} imports {name}"


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("import crossrank.training", True),
        ("from crossrank.models import build_model", True),
        ("from crossrank import runs", True),
        ("from crossrank import train", True),
        ("import crossrank as cr", True),
        ("import crossrank\ncrossrank.train()", True),
        ("from ..training import loop", True),
        ("def later():\n    from crossrank.cli import main", True),
        ("if TYPE_CHECKING:\n    from crossrank.runs import Run", True),
        ("importlib.import_module('crossrank.serving')", True),
        ("from crossrank.nn import CrossLayer", False),
        ("from crossrank.errors import DataError", False),
        ("from crossrank.data.table import Table", False),
        ("from .table import Table", False),
        ("from ..schema import Schema", False),
        ("import crossrank\ncrossrank.__version__", False),
        ("from crossrank import __version__", False),
        ("import polars", False),
    ],
)
def test_the_check_sees_every_kind_of_import(source, wrong):
    assert bool(uphill(source, "data", ("crossrank", "data"))) is wrong


def test_the_layers_need_neither_tables_nor_a_command_line():
    blocked = ("optuna", "pandas", "polars", "pyarrow", "sklearn", "typer")
    program = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is not installed")

sys.meta_path.insert(0, Absent())
import crossrank.nn
assert not {{name.partition(".")[0] for name in sys.modules}} & set({blocked!r})
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
