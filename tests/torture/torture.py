"""Commands are killed, and the disk fails them, at every file operation; then what must hold is looked at.

A warm process forks for each case: a copy of a small folder, a command with one kill or fault in it (faults.c), the
same command again as a person would type it, and a comparison with what an undisturbed command makes. A violation is

- a traceback, or an error without a remedy, where the command was not killed;
- a folder that was there before and does not open, or opens with other content than before or after the command;
- a next command that fails, or whose hint does not lead to the end;
- weights, rows or answers that differ by one byte from the undisturbed ones;
- anything left of ours, or missing of others'.

    python tests/torture/torture.py --cases 2000 --seed 0 --jobs 4      four processes, with the seeds 0 to 3
    python tests/torture/torture.py --case train "kill after" 17        one case again
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import errno
import gc
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COUNT, KILL_BEFORE, KILL_AFTER, FAIL_ONCE, FAIL_FROM, SHORT_WRITE, KILL_LATER = range(1, 8)
FAULTS = {
    "kill before": (KILL_BEFORE, 0),
    "kill after": (KILL_AFTER, 0),
    "kill at a moment": (KILL_LATER, 0),
    "disk full once": (FAIL_ONCE, errno.ENOSPC),
    "disk full from then on": (FAIL_FROM, errno.ENOSPC),
    "permission lost once": (FAIL_ONCE, errno.EACCES),
    "permission lost from then on": (FAIL_FROM, errno.EACCES),
    "device fails once": (FAIL_ONCE, errno.EIO),
    "short write": (SHORT_WRITE, 0),
}
LONGEST_SECONDS = 300
MOST_SERVED = 12  # cases of a command that ends for a kill alone
FOREIGN = ("NAME.partial-backup/keep", ".NAME.old/keep", "NAME.partial-notes.txt", ".NAME.partial")
CONFIG = """
[model]
embedding.dim = 2
cross.num_layers = 1
deep.sizes = [2]
[training]
batch_size = 128
epochs = 2
learning_rate = 0.02
device = "cpu"
"""
SPACE = """
[fixed.model]
name = "dcn-v2"
embedding.dim = 2
deep.sizes = [2]
cross.num_layers = 1
[fixed.training]
batch_size = 128
epochs = 1
device = "cpu"
[search.training]
learning_rate = { low = 1e-3, high = 1e-1, log = true }
"""


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A command, and what it makes.

    Attributes:
        command: as typed.
        target: the folder or file to make.
        kind: of it.
    """

    command: str
    target: str
    kind: str


TRAIN = "--config config.toml --into"
SCENARIOS = {
    "prepare": Scenario("prepare table.csv --schema schema.json --into new", "new", "dataset"),
    "prepare --overwrite": Scenario("prepare table.csv --schema schema.json --into d --overwrite", "d", "dataset"),
    "train": Scenario(f"train d {TRAIN} new", "new", "run"),
    "train --overwrite": Scenario(f"train d {TRAIN} r --seed 1 --overwrite", "r", "run"),
    "train a table": Scenario(f"train table.csv --schema schema.json {TRAIN} new", "new", "run"),
    "train --resume": Scenario(f"train d {TRAIN} begun --resume", "begun", "run"),
    "train --seeds": Scenario(f"train d {TRAIN} new --seeds 2", "new", "runs"),
    "train --ensemble": Scenario(f"train d {TRAIN} new --ensemble 2", "new", "run"),
    "tune": Scenario("tune d --into new --space space.toml --trials 2 --stages 1 --seeds 1 --jobs 1", "new", "search"),
    "promote": Scenario("promote r d --into new --seeds 1 --most 1", "new", "run"),
    "compress": Scenario("compress r --into new --rank 1", "new", "run"),
    "export": Scenario("export r --into new", "new", "bundle"),
    "export --overwrite": Scenario("export r --into b --precision int8 --overwrite", "b", "bundle"),
    "report": Scenario("report r", "r/report.html", "file"),
    "predict csv": Scenario("predict r table.csv --into new.csv", "new.csv", "file"),
    "predict parquet": Scenario("predict r table.csv --into new.parquet --overwrite", "new.parquet", "file"),
    "serve": Scenario("serve r --port 0", "r", "run"),
}


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended: its exit status, negative for a signal, what it printed, and the file operations it made."""

    status: int
    text: str
    operations: int
    seconds: float


class Torture:
    """The cases, in a folder of their own."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.work, self.template, self.references = folder / "work", folder / "template", folder / "references"
        self.faults = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self.faults.faults_arm.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_int]
        self.faults.faults_seen.restype = ctypes.c_long
        self.undisturbed: dict[str, Ended] = {}

    def run(self, words: list[str] | Callable[[], Any], mode: int = 0, number: int = 0, error: int = 0) -> Ended:
        """Run a command, or a function, in a process of its own."""
        told, counted = self.folder / "told", self.folder / "counted"
        for file in (told, counted):
            file.unlink(missing_ok=True)
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            self._child(words, mode, number, error, told, counted)
        with contextlib.suppress(OSError):  # the child may have done so itself
            os.setpgid(child, child)
        limit = number / 1e6 if mode == KILL_LATER else LONGEST_SECONDS
        while not (found := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() - started > limit:
                os.killpg(child, signal.SIGKILL)
                found = os.waitpid(child, 0)
                break
            time.sleep(0.002)
        operations = int(counted.read_text()) if counted.is_file() else 0
        status = os.waitstatus_to_exitcode(found[1])
        text = told.read_text(errors="replace") if told.is_file() else ""
        return Ended(status, text, operations, time.monotonic() - started)

    def _child(
        self, words: list[str] | Callable[[], Any], mode: int, number: int, error: int, told: Path, counted: Path
    ) -> None:
        os.setpgid(0, 0)
        output = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(self.work)
        status = 0
        try:
            if callable(words):
                words()
            else:
                from crossrank.cli import main

                sys.argv = ["crossrank", *words]
                if mode not in (0, KILL_LATER):
                    self.faults.faults_arm(str(self.work).encode(), mode, number, error)
                main()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
            status = 1
        finally:
            seen = self.faults.faults_seen()
            self.faults.faults_arm(b"", 0, 0, 0)
            sys.stdout.flush()
            sys.stderr.flush()
            counted.write_text(str(seen))
            os._exit(status)

    def prepare(self, names: list[str]) -> None:
        """The folder that cases begin with, and what each command makes of it undisturbed."""
        self.work.mkdir(parents=True)
        self._must(write_inputs)
        made = ["prepare table.csv --schema schema.json --into d", f"train d {TRAIN} r"]
        made += ["export r --into b"] if "export --overwrite" in names else []
        for command in made:
            self._must(command.split())
        self._must(lambda: begun(self.work))
        shutil.copytree(self.work, self.folder / "inputs")
        warm(self.folder / "inputs", names)
        self.work.rename(self.template)
        self.references.mkdir()
        for name in names:
            self.begin(name)
            self.undisturbed[name] = self._command(name, COUNT)
            shutil.copytree(self.work, self.references / name, symlinks=True)

    def _must(self, words: list[str] | Callable[[], Any]) -> None:
        ended = self.run(words)
        if ended.status:
            raise SystemExit(f"{words}: {ended.text}")

    def begin(self, name: str) -> None:
        """The folder as it is before a command, with things of others beside its target."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.template, self.work)
        target = self.work / SCENARIOS[name].target
        for place in FOREIGN:
            path = target.parent / place.replace("NAME", target.name)
            path.parent.mkdir(exist_ok=True)
            path.write_text("not yours")

    def _command(self, name: str, mode: int = 0, number: int = 0, error: int = 0, more: str = "") -> Ended:
        words = [*SCENARIOS[name].command.split(), *more.split()]
        if name != "serve":
            return self.run(words, mode, number, error)
        ended = self.run(words, KILL_LATER, number if mode == KILL_LATER else 6_000_000)  # it ends for nobody else
        return dataclasses.replace(ended, operations=1)

    def case(self, name: str, fault: str, number: int) -> list[str]:
        """The violations of one case."""
        (mode, error), wrong = FAULTS[fault], list[str]()
        self.begin(name)
        first = self._command(name, mode, number, error)
        killed = first.status == -signal.SIGKILL
        if "Traceback" in first.text or (not killed and first.status not in (0, 2)):
            wrong.append(f"the command ended with {first.status}: {first.text[-1500:]}")
        if first.status == 2 and not ("error:" in first.text and "hint:" in first.text):
            wrong.append(f"no error with a hint: {first.text[-500:]}")
        if self.random.random() < 0.5:  # else the next command is the first to see it
            wrong += self._look(name, complete=False)
        wrong += self._go_on(name) if name != "serve" else []
        wrong += self._look(name, complete=True)
        wrong += self._listed(name)
        return [f"{one}\n  (first: {first.status} {first.text[-300:]!r})" for one in wrong]

    def _go_on(self, name: str) -> list[str]:
        """Do what a person does next."""
        resume = "--resume" if self.random.random() < 0.5 and self._is_begun(name) else ""
        ended = self._command(name, more=resume)
        if ended.status == 2 and "hint: Pass --resume" in ended.text:
            ended = self._command(name, more="--resume")
        if ended.status == 2 and "must not exist yet" in ended.text and (self.work / SCENARIOS[name].target).exists():
            return []  # it was complete when it was killed, which is looked at next
        return [f"the next command ended with {ended.status}: {ended.text[-1500:]}"] if ended.status else []

    def _is_begun(self, name: str) -> bool:
        partial = self.work / f"{SCENARIOS[name].target}.partial"
        return (partial / "checkpoint" / "position.json").is_file() or (partial / "members").is_dir()

    def _look(self, name: str, *, complete: bool) -> list[str]:
        ended = self.run(lambda: look(self.work, self.template, self.references / name, SCENARIOS[name], complete))
        return [f"{'afterwards' if complete else 'before going on'}: {ended.text[-1500:]}"] if ended.status else []

    def _listed(self, name: str) -> list[str]:
        expected, found = (set(listed(folder)) for folder in (self.references / name, self.work))
        left, lost = sorted(found - expected), sorted(expected - found)
        lost = [path for path in lost if not path.endswith("report.html")]  # of a run that was complete without it
        return [f"left: {left}, lost: {lost}"] if left or lost else []


def listed(folder: Path) -> Iterator[str]:
    """Every path below a folder."""
    return (path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def write_inputs() -> None:
    """A table whose label depends on a pair of columns, its schema, and settings."""
    import numpy as np
    import polars as pl

    from crossrank.schema import Categorical, Label, Numeric, Schema

    draw = np.random.default_rng(0)
    user, item = draw.integers(0, 8, (2, 800))
    odds = 3 * draw.normal(size=(8, 8))[user, item]
    label = (draw.random(800) < 1 / (1 + np.exp(-odds))).astype(int)
    rows = {"user": [f"u{i}" for i in user], "item": [f"i{i}" for i in item], "age": draw.integers(20, 60, 800)}
    pl.DataFrame({**rows, "label": label}).write_csv("table.csv")
    columns = [Categorical(name="user"), Categorical(name="item"), Numeric(name="age", encoding="scalar")]
    Schema(columns, Label(name="label")).save("schema.json")
    Path("config.toml").write_text(CONFIG)
    Path("space.toml").write_text(SPACE)


def begun(work: Path) -> None:
    """Leave a training as it is after its first evaluation."""
    from crossrank.config import load_toml
    from crossrank.errors import CrossRankError
    from crossrank.training import train

    def stop(*_: Any) -> None:
        raise InterruptedError

    try:
        train(work / "d", into=work / "begun", config=load_toml(Path("config.toml")), on_evaluation=stop)
    except CrossRankError:
        return
    raise AssertionError("it must be stopped")


def look(work: Path, template: Path, reference: Path, scenario: Scenario, complete: bool) -> None:
    """Open what a command makes, and compare it with the undisturbed one, or with what was there before."""
    from crossrank.errors import CrossRankError

    contents = {"run": of_run, "runs": of_runs, "dataset": of_dataset, "bundle": of_bundle, "file": of_file}
    content = {**contents, "search": of_search}[scenario.kind]
    target, before = work / scenario.target, template / scenario.target
    allowed = [content(reference / scenario.target)]
    if not complete and before.exists():
        allowed.append(content(before))
    try:
        found = content(target)
    except (CrossRankError, FileNotFoundError) as error:
        if before.exists() or complete:
            raise
        assert not isinstance(error, CrossRankError) or error.hint, f"no hint: {error}"
        return
    assert found in allowed, "another content than the undisturbed command's"


def of_run(folder: Path) -> Any:
    from crossrank.runs import Run

    run = Run.open(folder)
    assert run.model is not None and run.report and run.metrics is not None
    return (folder / "model.safetensors").read_bytes(), run.encoder.fingerprint, run.info["data_fingerprint"]


def of_runs(folder: Path) -> Any:
    found = [of_run(path) for path in sorted(folder.glob("seed-*")) if not path.name.endswith(".partial")]
    if not (folder / "seeds.json").is_file():
        raise FileNotFoundError("it is not complete")
    return found, json.loads((folder / "seeds.json").read_text())


def of_dataset(folder: Path) -> Any:
    from crossrank.data import EncodedDataset

    dataset = EncodedDataset.open(folder)
    dataset.verify()
    return dataset.fingerprint


def of_bundle(folder: Path) -> Any:
    from crossrank.serving.bundle import Bundle

    return {name: sum_ for name, sum_ in Bundle.open(folder).manifest["checksums"].items() if name != "rows.json"}


def of_file(file: Path) -> Any:
    return len(file.read_bytes()) if file.suffix in (".html", ".parquet") else file.read_bytes()


def of_search(folder: Path) -> Any:
    rows = json.loads((folder / "leaderboard.json").read_text())
    result = json.loads((folder / "result.json").read_text())
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows], result


def warm(inputs: Path, names: list[str]) -> None:
    """Run some commands once, so that what they import is there; a table is read in the children alone: polars does not
    outlive a fork."""
    from crossrank.cli import main

    here, argv = Path.cwd(), sys.argv
    os.chdir(inputs)
    for name in {"train", "tune", "promote", "compress", "export", "report"} & {"train", *names}:
        sys.argv = ["crossrank", *SCENARIOS[name].command.replace("new", f"warm-{name}").split()]
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
            main()
    os.chdir(here)
    sys.argv = argv
    shutil.rmtree(inputs)
    gc.collect()
    gc.freeze()  # so that a fork does not copy what it only looks through


def plan(torture: Torture, names: list[str], cases: int, most_served: int) -> list[tuple[str, str, int]]:
    """Cases in an order of chance: each command's share goes over its operations, one in each stretch of them."""
    found = []
    served = min(-(-cases // len(names)), most_served) if "serve" in names else 0  # they wait; the others get the rest
    share = -(-(cases - served) // max(len(names) - ("serve" in names), 1))
    for name in names:
        ended = torture.undisturbed[name]
        faults = ["kill at a moment"] if name == "serve" else list(FAULTS)
        weights = [1] if name == "serve" else [4, 4, 3, 2, 2, 1, 1, 1, 2]
        count = served if name == "serve" else share
        chosen = torture.random.choices(faults, weights, k=count)
        places = [1 + int((place + torture.random.random()) * ended.operations / count) for place in range(count)]
        torture.random.shuffle(places)
        for fault, place in zip(chosen, places, strict=True):
            moment = int(1e6 * torture.random.random() * ended.seconds)
            found.append((name, fault, moment if fault == "kill at a moment" else place))
    torture.random.shuffle(found)
    return found


def tortured(asked: argparse.Namespace, folder: Path) -> int:
    """Go through the cases of one process, and leave their counts in its folder."""
    names = [asked.case[0]] if asked.case else asked.only
    torture = Torture(folder.resolve(), asked.seed)
    torture.prepare(names)
    for name in names:
        ended = torture.undisturbed[name]
        if ended.status and name != "serve":
            print(f"{name}: {ended.text}")
            return 1
    most_served = -(-MOST_SERVED // asked.jobs)
    cases = [(*asked.case[:2], int(asked.case[2]))] if asked.case else plan(torture, names, asked.cases, most_served)
    counts, failed, started = Counter[tuple[str, str]](), Counter[str](), time.monotonic()
    for done, (name, fault, number) in enumerate(cases, 1):
        counts[name, fault] += 1
        if wrong := torture.case(name, fault, number):
            failed[name] += 1
            print(
                "\n- ".join([f"VIOLATION --case {name!r} {fault!r} {number} --seed {asked.seed}", *wrong]), flush=True
            )
        if done % 20 == 0:
            seconds = time.monotonic() - started
            print(f"seed {asked.seed}: {done} of {len(cases)}, {failed.total()} violated, {seconds:.0f} s", flush=True)
    (folder / "counts.json").write_text(json.dumps([list(counts.items()), failed]))
    return 0


def table(names: list[str], folders: list[Path]) -> int:
    """Print what all processes have been through, by command and fault; the number of cases with violations."""
    counts, failed = Counter[tuple[str, str]](), Counter[str]()
    for folder in folders:
        found, violated = json.loads((folder / "counts.json").read_text())
        counts.update({tuple(key): count for key, count in found})
        failed.update(violated)
    print("| command |", " | ".join(FAULTS), "| cases | violations |")
    print("| --- |", "---: | " * (len(FAULTS) + 2))
    for name in names:
        each = [counts[name, fault] for fault in FAULTS]
        print("|", " | ".join(map(str, [f"`{name}`", *each, sum(each), failed[name]])), "|")
    kills = sum(count for (_, fault), count in counts.items() if fault.startswith("kill"))
    print(f"{counts.total()} cases, {failed.total()} with violations; {kills} were kills")
    return failed.total()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with its share of the cases")
    parser.add_argument("--only", nargs="*", default=list(SCENARIOS), help="commands")
    parser.add_argument("--case", nargs=3, metavar=("COMMAND", "FAULT", "NUMBER"), help="one case again")
    parser.add_argument("--into", type=Path, help="a folder to work in, kept; otherwise a temporary one")
    asked = parser.parse_args()
    if "LD_PRELOAD" in os.environ:
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)  # of threads, which the children do not use
        return tortured(asked, asked.into)
    started, jobs = time.monotonic(), 1 if asked.case else asked.jobs
    with tempfile.TemporaryDirectory(prefix="torture-") as temporary:
        library, work = Path(temporary) / "faults.so", asked.into or Path(temporary)
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, HERE / "faults.c", "-ldl"], check=True)
        settings = {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        processes, folders = [], []
        for number in range(jobs):
            folders.append(work / str(number))
            place = Path(temporary) / f"tmp-{number}"
            place.mkdir()
            share = asked.cases // jobs + (number < asked.cases % jobs)
            words = ["--seed", asked.seed + number, "--cases", share, "--into", folders[-1]]  # the last of each counts
            command = [sys.executable, __file__, *sys.argv[1:], *map(str, words)]
            processes.append(subprocess.Popen(command, env={**os.environ, **settings, "TMPDIR": str(place)}))
        broken = sum(process.wait() != 0 for process in processes)
        done = [folder for folder in folders if (folder / "counts.json").is_file()]
        failed = table([asked.case[0]] if asked.case else asked.only, done)
    print(f"{time.monotonic() - started:.0f} s in {jobs} processes, seeds {asked.seed} to {asked.seed + jobs - 1}")
    if broken:
        print(f"{broken} of them did not come to their end")
    return 1 if failed or broken else 0


if __name__ == "__main__":
    sys.exit(main())
