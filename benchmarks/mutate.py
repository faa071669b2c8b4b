"""Whether tests notice a wrong sign, in the mathematics and around files: one change at a time, in its own process.

    python benchmarks/mutate.py --sample 200 --seed 1
    python benchmarks/mutate.py --only training/loss.py --sample 1000        every mutant of a file

A mutant has + for -, * for /, < for <=, == for !=, `or` for `and`, a condition turned round, a sign or a `not` left
out, or a number that is one more. It is killed when a test of its file fails, or takes too long; survivors are printed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.machinery
import os
import random
import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "crossrank"
NETWORKS = ["nn", "equations", "contracts/test_modules.py", "models", "serving/test_splitting.py"]
METRICS = ["evaluation/test_metrics.py", "evaluation/test_metrics_grouped.py", "training/test_classes.py"]
RULE = ["training/test_optimizer.py", "training/test_lazy.py"]
SPLIT = ["serving/test_splitting.py", "serving/test_ranker.py", "serving/test_index.py"]
FOLDERS = ["test_files.py", "test_folders.py", "runs/test_run.py"]
RUNS = ["runs/test_run.py", "test_folders.py", "training/test_damage.py"]
ENCODER = ["data/test_encoder.py", "data/test_dataset.py", "data/test_number_codes.py", "data/test_crossing.py"]
HTTP = [f"serving/http/test_{name}.py" for name in ("batching", "app", "protocol", "access")]
TESTS: dict[str, list[str]] = {
    **{f"nn/{path.name}": NETWORKS for path in sorted((SOURCE / "nn").glob("[!_]*.py"))},
    **{f"evaluation/{name}.py": METRICS for name in ("metrics", "grouped", "classes")},
    **{f"evaluation/{name}.py": [f"evaluation/test_{name}.py"] for name in ("curves", "intervals", "thresholds")},
    "training/loss.py": [f"training/test_{name}.py" for name in ("loss", "ranking_losses", "classes", "tasks")],
    **{f"training/{name}.py": RULE for name in ("rule", "idle", "schedule", "optimizer")},
    **{f"serving/{name}.py": SPLIT for name in ("polynomial", "quadratic", "separable", "deep_terms", "splitting")},
    **{f"serving/{name}.py": SPLIT for name in ("pairing", "sides", "ranker")},
    **dict.fromkeys(("files.py", "folders.py"), FOLDERS),
    **{f"runs/{name}.py": RUNS for name in ("lifecycle", "packing", "run", "writing")},
    "training/checkpoint.py": ["training/test_damage.py"],
    **{f"data/{name}.py": ENCODER for name in ("encoder", "encoder_builder", "encoder_files")},
    **{f"serving/http/{name}.py": HTTP for name in ("app", "batching", "bodies", "gate", "metrics", "protocol")},
    **{f"serving/http/{name}.py": HTTP for name in ("served", "settings")},
}
LOADED = ("hypothesis", "pytest", "torch._dynamo", "crossrank.data")  # which every process of a mutant then has
SECONDS = 240  # of processor time
PAIRS: list[tuple[type[ast.AST], type[ast.AST]]] = [
    *[(ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or)],
    *[(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot)],
]
OTHER = {ast.Pow: ast.Mult, ast.FloorDiv: ast.Mult, **dict(PAIRS), **{b: a for a, b in PAIRS}}
LEFT_OUT = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)  # messages, and what is not mathematics


def changed(node: ast.AST) -> ast.AST | None:
    """Another node in place of this one, or None where there is nothing to change."""
    new: Any = copy.deepcopy(node)
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in OTHER:
        new.op = OTHER[type(node.op)]()
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER:
        new.ops[0] = OTHER[type(node.ops[0])]()
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        new = new.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        new.value = not node.value if isinstance(node.value, bool) else node.value + 1
    elif isinstance(node, ast.If | ast.IfExp) and isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        new.test = ast.UnaryOp(ast.Not(), new.test)
    else:
        return None
    return new


def places(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Where a node stands that can be changed: its parent, the field, the place in a list."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not isinstance(child, LEFT_OUT):
                if changed(child) is not None:
                    yield node, name, place
                yield from places(child)


def mutant(tree: ast.Module, number: int) -> tuple[ast.Module, str]:
    """The tree with its n-th change, and the line that is another one."""
    tree = copy.deepcopy(tree)
    before = ast.unparse(tree).splitlines()
    parent, name, place = list(places(tree))[number]
    held: Any = getattr(parent, name)
    new = changed(held if place is None else held[place])
    if place is None:
        setattr(parent, name, new)
    else:
        held[place] = new
    ast.fix_missing_locations(tree)
    after = ast.unparse(tree).splitlines()
    differing = [pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]] or [("?", "?")]
    return tree, f"- {differing[0][0].strip()}\n    + {differing[0][1].strip()}"


def is_killed(path: Path, tree: ast.Module | None, tests: list[str]) -> bool:
    """Whether a test fails, in a process that has torch loaded already, where the module is the mutant."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    compiled = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: Any, name: str) -> Any:
        wanted = tree is not None and Path(self.path) == path
        return compile(tree, self.path, "exec") if wanted else compiled(self, name)  # type: ignore[arg-type]

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    module = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
    importlib.import_module(module)  # before pytest, which reads files that it is given by a loader of its own
    import pytest

    os._exit(int(pytest.main(["-x", "-q", "-m", "not slow", str(path), *tests])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", nargs="*", default=list(TESTS), help="files below src/crossrank, or the beginnings of names"
    )
    parser.add_argument("--list", action="store_true", help="count the mutants of each file, and end")
    args = parser.parse_args()
    os.chdir(ROOT)
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": tempfile.mkdtemp(),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    sys.path.insert(0, str(ROOT / "src"))
    sys.dont_write_bytecode = True
    names = [name for name in TESTS if name.startswith(tuple(args.only))]
    trees = {name: ast.parse((SOURCE / name).read_text(encoding="utf-8")) for name in names}
    every = [(name, number) for name in names for number in range(len(list(places(trees[name]))))]
    if args.list:
        for name in names:
            print(name, sum(one == name for one, _ in every))
        return
    for package in LOADED:
        importlib.import_module(package)
    tests = {name: [f"tests/{test}" for test in TESTS[name]] for name in names}
    killed, chosen = 0, random.Random(args.seed).sample(every, min(args.sample, len(every)))
    for wanted in {tuple(tests[name]): name for name, _ in chosen}.values():
        if is_killed(SOURCE / wanted, None, tests[wanted]):
            sys.exit(f"The tests of {wanted} fail without a change: {tests[wanted]}")
    for name, number in sorted(chosen):
        tree, line = mutant(trees[name], number)
        if is_killed(SOURCE / name, tree, tests[name]):
            killed += 1
        else:
            print(f"survives: {name} #{number}\n    {line}", flush=True)
    print(f"{len(chosen)} of {len(every)} mutants, seed {args.seed}: {killed} killed, {len(chosen) - killed} survive")


if __name__ == "__main__":
    main()
