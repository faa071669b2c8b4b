"""Hand the folders of a stranger to the commands for a while.

    python benchmarks/fuzz_folders.py --minutes 10

Each case is a good run, dataset, bundle, schema, config or JSON row in which some values were replaced, removed,
doubled or nested, or some bytes of a binary file changed; checksums are written anew, as a stranger would. A command
may refuse it with an error of ours (exit status 2), or do its work. Anything else is a finding: a traceback, more than
a minute, more than 8 GiB, a control character on the terminal, or a tag on the page. Hypothesis makes the smallest such
case, which is printed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from crossrank.cli import main as command_line
from crossrank.data.generators.demo import click_log, schema
from crossrank.data.prepare import prepare
from crossrank.files import checksum
from crossrank.training import train

TAG = "<script>found()</script>"
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 3, 10**9, 2**63, 10**30, -0.5, 0.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"),
    "", "x", "0", TAG, "\x1b[31m", "\ud800", "a" * 5000, "../../x", "/dev/zero", "=1+1", "$title", "{0}", "[/b]", "\0",
    [], [None], [1, "x"], [[]], {}, {"": 1}, {"a": None}, [1.5] * 3, ["x"] * 300,
]  # fmt: skip
SMALL = {"model": {"embedding": {"dim": 2}, "deep": {"sizes": [4]}}, "training": {"max_steps": 2, "device": "cpu"}}
outcomes: Counter[str] = Counter()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything inside a value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def mutated(draw: Callable[..., Any], value: Any) -> Any:
    """A value with one or several places changed."""
    whole = {"": json.loads(json.dumps(value))}
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
        *parents, key = draw(st.sampled_from(list(places(whole))[1:]))
        place: Any = whole
        for parent in parents:
            place = place[parent]
        match draw(st.sampled_from(["replace", "replace", "replace", "remove", "nest", "double", "swap"])):
            case "remove" if parents:
                del place[key]
            case "nest":
                place[key] = json.loads("[" * 40 + "]" * 40) if draw(st.booleans()) else {"x": place[key]}
            case "double" if isinstance(place, list):
                place.insert(0, copy.deepcopy(place[key]))
            case "swap" if isinstance(place, dict):
                place[draw(st.sampled_from(["x", TAG, "..", "", "__class__"]))] = place.pop(key)
                whole.setdefault("", None)
            case _:
                place[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))
    return whole.get("")


def change_bytes(draw: Callable[..., Any], content: bytes) -> bytes:
    """Some bytes replaced, or the end cut off."""
    data = bytearray(content)
    for _ in range(draw(st.sampled_from([1, 1, 3, 20]))):
        data[draw(st.integers(0, max(len(data) - 1, 0)))] = draw(st.integers(0, 255))
    return bytes(data if draw(st.integers(0, 9)) else data[: draw(st.integers(0, len(data)))])


def change_file(draw: Callable[..., Any], file: Path) -> None:
    """Write a file anew, not as it was."""
    if file.suffix == ".json":
        file.write_text(json.dumps(mutated(draw, json.loads(file.read_text()))))
    elif file.suffix == ".jsonl":
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("\n".join(json.dumps(mutated(draw, line)) for line in lines))
    else:
        file.write_bytes(change_bytes(draw, file.read_bytes()))


def sign(folder: Path, name: str) -> None:
    """Write the checksums of a folder's files anew, where its list of them is still one."""
    with contextlib.suppress(Exception):
        content = json.loads((folder / name).read_text())
        content.pop("checksum", None)
        for key, below in (("checksums", folder), ("records", folder), ("encoder", folder / "encoder")):
            for file in content.get(key, {}):
                content[key][file] = checksum(below / file)
        for file, about in content.get("arrays", {}).items():
            from crossrank.data.arrays import array_checksum, map_array

            array = map_array(folder / file, about["dtype"], about["shape"])
            about["checksum"] = array_checksum(array, digits=len(about["checksum"]))
        (folder / name).write_text(json.dumps(content))


def run_command(*words: object) -> str:
    """Run a command as the shell would: it works or says what is wrong; what it printed."""
    output, talk = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(talk),
        mock.patch.object(sys, "argv", ["crossrank", *map(str, words)]),
    ):
        try:
            command_line()
            status: Any = 0
        except SystemExit as stop:
            status = stop.code or 0
    said = output.getvalue() + talk.getvalue()
    assert status in (0, 2), said
    assert "Traceback" not in said, said
    assert not any(ord(letter) < 32 and letter not in "\n\t" for letter in said), repr(said)
    outcomes[f"{words[0]}: {'done' if status == 0 else 'refused'}"] += 1
    return said


class Fuzzer:
    """Good folders, and a case for each kind of them."""

    def __init__(self, place: Path) -> None:
        self.good, self.case = place / "good", place / "case"
        shutil.rmtree(place, ignore_errors=True)
        self.good.mkdir(parents=True)
        frame = click_log(400).frame
        frame.write_csv(self.good / "clicks.csv")
        self.row = frame.row(0, named=True)
        schema().save(self.good / "schema.json")
        dataset = prepare(frame, schema(), self.good / "dataset")
        run = train(dataset, into=self.good / "run", config=SMALL, progress=False)
        with contextlib.redirect_stderr(io.StringIO()):
            from crossrank.serving.export import export

            export(run, self.good / "bundle")
        (self.good / "config.json").write_text(json.dumps(run.config))

    def copy(self, name: str) -> Path:
        """A good folder or file, to be spoiled."""
        shutil.rmtree(self.case, ignore_errors=True)
        self.case.mkdir()
        source, target = self.good / name, self.case / name
        return shutil.copytree(source, target) if source.is_dir() else Path(shutil.copy(source, target))

    def spoiled(self, draw: Callable[..., Any], name: str, manifest: str) -> Path:
        """A copy with one file changed, and signed, mostly."""
        folder = self.copy(name)
        files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.suffix != ".html"]
        change_file(draw, draw(st.sampled_from([file for file in files if "checkpoint" not in file.parts])))
        if draw(st.integers(0, 9)):
            sign(folder, manifest)
        return folder

    def run(self, draw: Callable[..., Any]) -> None:
        folder = self.spoiled(draw, "run", "run.json")
        run_command("report", folder, "--into", self.case / "page.html")
        if (self.case / "page.html").exists():
            assert TAG not in (self.case / "page.html").read_text(), "a tag on the page"
        more = draw(st.sampled_from([["--features"], ["--spectrum"], ["--directed"], ["--row", json.dumps(self.row)]]))
        run_command("explain", folder, *more)
        run_command("evaluate", folder)
        run_command("predict", folder, self.good / "clicks.csv", "--into", self.case / "scored.csv")

    def dataset(self, draw: Callable[..., Any]) -> None:
        folder = self.spoiled(draw, "dataset", "manifest.json")
        words = [f"--set={key}" for key in ("model.embedding.dim=2", "model.deep.sizes=[4]", "training.max_steps=2")]
        run_command("train", folder, "--into", self.case / "made", *words)
        run_command("evaluate", self.good / "run", folder)

    def bundle(self, draw: Callable[..., Any]) -> None:
        from crossrank.errors import CrossRankError
        from crossrank.serving.scorer import Scorer

        folder = self.spoiled(draw, "bundle", "manifest.json")
        try:
            Scorer.open(folder).score([self.row])
            outcomes["score: done"] += 1
        except CrossRankError:
            outcomes["score: refused"] += 1

    def schema(self, draw: Callable[..., Any]) -> None:
        file = self.copy("schema.json")
        change_file(draw, file)
        run_command("prepare", self.good / "clicks.csv", "--schema", file, "--into", self.case / "made")

    def config(self, draw: Callable[..., Any]) -> None:
        values = mutated(draw, json.loads((self.good / "config.json").read_text()))
        words = []
        for part, keys in values.items() if isinstance(values, dict) else ():
            if isinstance(keys, dict):
                words += [f"--set={part}.{key}={json.dumps(value)}" for key, value in keys.items() if value is not None]
            else:
                words.append(f"--set={part}={json.dumps(keys)}")
        text = "\n".join(word.removeprefix("--set=") for word in words)
        with contextlib.suppress(tomllib.TOMLDecodeError, RecursionError):
            tomllib.loads(text)
            (self.case / "config.toml").write_text(text, errors="replace")
            words = ["--config", self.case / "config.toml"]
        run_command("train", self.good / "dataset", "--into", self.case / "made", *words, "--set=training.max_steps=2")

    def rows(self, draw: Callable[..., Any]) -> None:
        text = json.dumps(mutated(draw, self.row))
        run_command("explain", self.good / "run", "--row", draw(st.sampled_from([text, text, text[:-1], "[" * 5000])))


KINDS = ("run", "dataset", "bundle", "schema", "config", "rows")


def fuzz(options: argparse.Namespace) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    fuzzer, end = Fuzzer(options.into), time.monotonic() + 60 * options.minutes
    print(f"seed {options.seed}, files in {options.into}", flush=True)
    rng = random.Random(options.seed)
    while time.monotonic() < end:
        kind = rng.choice(options.kinds)

        @seed(rng.randrange(1 << 32))
        @settings(
            max_examples=25,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
            print_blob=True,
        )
        @given(st.data())
        def check(data: st.DataObject) -> None:
            fuzzer.case.mkdir(exist_ok=True)
            signal.alarm(60)
            getattr(fuzzer, kind)(data.draw)  # noqa: B023
            signal.alarm(0)

        check()
    signal.alarm(0)
    print(f"no findings in {sum(outcomes.values()):,} commands")
    for outcome, count in sorted(outcomes.items()):
        print(f"  {outcome}: {count:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Hand the folders of a stranger to the commands for a while.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--into", type=Path, default=Path(tempfile.gettempdir()) / "crossrank-fuzz-folders")
    fuzz(parser.parse_args())


if __name__ == "__main__":
    main()
