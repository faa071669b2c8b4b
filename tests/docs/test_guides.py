"""Every code block of the README and the guides does what the page says.

A page is run from top to bottom in a folder of its own. Unless it runs ``crossrank demo`` itself, it finds the demo's
results in ``runs/demo``, for the guides go on where the tutorial ends. Blocks of ``python`` share one namespace, lines
of ``bash`` go to the command line in this process or, where they need a shell, to bash. A block of ``text`` is the
output of the block before it: ``...`` stands for anything, and numbers with a point may differ a little, as they do
from processor to processor. A comment in front of a block says what cannot be run as it is:

- ``<!-- not run: reason -->``;
- ``<!-- real data -->``: needs files of public sets, which CROSSRANK_DATA has;
- ``<!-- torchrec -->``, ``<!-- ray -->``: needs TorchRec, or Ray, which ``make test-distributed`` installs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import importlib.util
import io
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from crossrank.cli import main
from crossrank.experiments.demo import run_demo

ROOT = Path(__file__).parents[2]
OTHERS = ("paper.md", "paper/", "benchmarks.md", "reference/")  # results with the command that made them; generated
MOST_NOT_RUN = 3
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d+\.\d+")
TOKEN = re.compile(rf"(\.\.\.|\s+|{NUMBER.pattern})")
MARK = re.compile(r"<!-- (not run: .+|real data|torchrec|ray) -->\n+ *\Z")


@dataclasses.dataclass
class Block:
    language: str
    text: str
    line: int
    mark: str
    output: str | None = None


def pages() -> list[str]:
    docs = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", *(name for name in docs if not name.removeprefix("docs/").startswith(OTHERS))]


def blocks(page: str) -> list[Block]:
    """What a page has to run, each block with the output that the page shows."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found: list[Block] = []
    for fence in FENCE.finditer(text):
        indent, language, content = fence.groups()
        content = "".join(line.removeprefix(indent) for line in content.splitlines(keepends=True))
        if language == "text":
            found[-1].output = content
        elif language in ("python", "bash"):
            mark = MARK.search(text, 0, fence.start())
            line = text.count("\n", 0, fence.start()) + 2
            found.append(Block(language, content, line, mark[1] if mark else ""))
    return found


PAGES = [page for page in pages() if blocks(page)]
TORCHREC = [page for page in PAGES if any(block.mark == "torchrec" for block in blocks(page))]
REAL = [page for page in PAGES if any(block.mark == "real data" for block in blocks(page))]


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> Path:
    """What ``crossrank demo`` makes, at its full size: the pages show its numbers."""
    folder = tmp_path_factory.mktemp("demo") / "demo"
    run_demo(folder, say=lambda _: None)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_does_what_it_says(page, demo, tmp_path) -> None:
    todo = [block for block in blocks(page) if not block.mark]
    if not any("crossrank demo" in block.text for block in todo):
        shutil.copytree(demo, tmp_path / "runs" / "demo")
    run(page, todo, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", REAL)
def test_a_page_does_what_it_says_of_public_sets(page, real_data, tmp_path) -> None:
    (tmp_path / "ml-1m.zip").symlink_to(real_data / "ml-1m.zip")
    (tmp_path / "train.gz").symlink_to(real_data / "avazu_sample.csv.gz")
    (tmp_path / "train.txt").write_bytes(gzip.decompress((real_data / "criteo_sample.tsv.gz").read_bytes()))
    run(page, [block for block in blocks(page) if block.mark == "real data"], tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torchrec") is None, reason="run by `make test-distributed`")
@pytest.mark.parametrize("page", TORCHREC)
def test_a_page_does_what_it_says_of_several_processes(page, tmp_path) -> None:
    there = [name for name in ("torchrec", "ray") if importlib.util.find_spec(name)]
    run(page, [block for block in blocks(page) if block.mark in there], tmp_path)


def test_few_blocks_are_left_out_and_each_says_why() -> None:
    left_out = [(page, block.line) for page in PAGES for block in blocks(page) if block.mark.startswith("not run")]
    assert len(left_out) <= MOST_NOT_RUN, left_out


@pytest.mark.parametrize("page", pages())
def test_no_block_escapes_by_its_language(page) -> None:
    languages = {fence[2] for fence in FENCE.finditer((ROOT / page).read_text(encoding="utf-8"))}
    assert languages <= {"python", "bash", "text", "json", "yaml", "toml", ""}


def test_outputs_are_compared() -> None:
    assert agree("loss 0.39 ...\nend", "loss  0.3936 and more\nend\n")
    assert not agree("loss 0.39", "loss 0.45")
    assert not agree("3 rows", "4 rows")
    assert not agree("one", "one two")
    assert agree(sort_rows("│ b │\n│ a │"), sort_rows("│ a │\n│ b │"))


def run(page: str, todo: list[Block], folder: Path) -> None:
    """Run blocks one after the other and compare what they print."""
    names: dict[str, object] = {"__name__": "__main__"}
    environment = {"NO_COLOR": "1", "COLUMNS": "100", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with contextlib.chdir(folder), mock.patch.dict(os.environ, environment):
        for block in todo:
            printed = io.StringIO()
            place = f"{page}, line {block.line}"
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                if block.language == "python":
                    exec(compile("\n" * (block.line - 1) + block.text, str(ROOT / page), "exec"), names)
                else:
                    for line in lines(block.text):
                        shell(line, place)
            if block.output is not None:
                shown, got = block.output, printed.getvalue()
                same = agree(shown, got) or agree(sort_rows(shown), sort_rows(got))
                assert same, f"{place} shows\n{shown}\nand prints\n{got}"


def agree(shown: str, got: str) -> bool:
    """Whether a page shows what was printed; numbers with a point count as equal within a twentieth or 0.02."""
    words = TOKEN.split(shown.strip())
    numbers = [float(word) for word in words if NUMBER.fullmatch(word)]
    found = re.fullmatch("".join(map(_pattern, words)), got.strip(), re.DOTALL)
    return found is not None and all(
        abs(number - float(text)) <= max(0.02, 0.05 * abs(number))
        for number, text in zip(numbers, found.groups(), strict=True)
    )


def _pattern(word: str) -> str:
    if word == "...":
        return ".*?"
    if NUMBER.fullmatch(word):
        return f"({NUMBER.pattern})"
    return r"\s+" if word.isspace() else re.escape(word)


def sort_rows(text: str) -> str:
    """The rows of each table in alphabetical order: of two crosses of nearly one strength, either may come first."""
    parts = itertools.groupby(text.splitlines(), key=lambda line: line.startswith("│"))
    return "\n".join(line for is_row, part in parts for line in (sorted(part) if is_row else part))


def lines(text: str) -> Iterator[str]:
    """Commands, with those that go on after a backslash or a quote in one piece."""
    command = ""
    for line in text.splitlines():
        command += line
        if line.endswith("\\"):
            command = command[:-1]
            continue
        try:
            words = shlex.split(command, comments=True)
        except ValueError:  # a quote is still open
            command += "\n"
            continue
        if words:
            yield command
        command = ""
    assert not command, f"this does not end: {command}"


def shell(line: str, place: str) -> None:
    """Run one line: a plain ``crossrank …`` in this process, anything else by bash."""
    words = shlex.split(line, comments=True)
    if words[0] == "crossrank" and words[-2] == ">":
        with Path(words[-1]).open("w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
            shell(shlex.join(words[:-2]), place)
        return
    if words[0] != "crossrank":
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", line], capture_output=True, text=True, check=False)
        print(done.stdout + done.stderr, end="")
        status = done.returncode
    else:
        with mock.patch.object(sys, "argv", words):
            try:
                main()
                status = 0
            except SystemExit as stop:
                status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    assert status == 0, f"{place}: {line}\n{sys.stderr.getvalue()}"  # type: ignore[attr-defined]
