"""Tables as people have them: crossrank, CatBoost and LightGBM, by default and with a budget to look for settings.

    python benchmarks/tables.py                                    all tables, five seeds, defaults only
    python benchmarks/tables.py --minutes 10                       tuned too: ten minutes for each table and library
    python benchmarks/tables.py --tables adult flights --seeds 2
    python benchmarks/tables.py --jobs 14                          on a machine with so many free cores

Each library trains in a process and an environment of its own (made on first use under .bench/), on one thread, on the
same training rows of the same csv file, and stops by the same validation rows. crossrank is given the file and the
label's name; the trees are told which columns are categories and which are dates. Settings are looked for once a table,
on the validation rows. The data are found through ``CROSSRANK_DATA``; see ``--help`` for the tables.

What is finished is kept under .bench/tables-results, and the same command goes on from there; ``--again crossrank``
forgets what crossrank did. The page goes to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from crossrank.data.sources.avazu import GIVEN
from crossrank.data.sources.criteo import COLUMNS
from crossrank.data.sources.movielens import open_set
from crossrank.evaluation.metrics import auc, r2, rmse

HERE = Path(__file__).resolve().parent
TREES = {"CatBoost": "catboost", "LightGBM": "lightgbm"}
OURS = "crossrank"
LIBRARIES = {OURS: "crossrank", **TREES}
SPLITS = ("train", "valid", "test")


class Source(NamedTuple):
    """A table: how it is read, its label, and which of its columns are categories and dates for the trees."""

    read: Callable[[Path], pl.DataFrame]  # all cells as text
    label: str
    categories: Sequence[str] = ()
    dates: Sequence[str] = ()
    real: bool = False


def csv(name: str, **options: Any) -> Callable[[Path], pl.DataFrame]:
    return lambda data: pl.read_csv(data / name, infer_schema=False, **options)


def movielens(data: Path) -> pl.DataFrame:
    """The paper's six features."""
    parts = [chunk.frame for chunk in open_set(data / "ml-1m.zip").chunks()]
    return pl.concat(parts).drop("genres", "timestamp").cast(pl.String)


SOURCES = {
    "adult": Source(
        csv("adult.csv.gz"),
        "label",
        ("workclass", "education", "marital-status", "occupation", "relationship", "race", "gender", "native-country"),
    ),
    "book-crossing": Source(
        csv("book-crossing.csv.gz"), "label", ("user", "item", "author", "publisher", "city", "state", "country")
    ),
    "california": Source(csv("california_housing.csv.gz"), "MedHouseVal", real=True),
    "flights": Source(
        csv("flights.csv.gz"), "late", ("carrier", "flight", "tailnum", "origin", "dest"), dates=("time_hour",)
    ),
    "movielens": Source(movielens, "liked", ("user", "movie", "gender", "age", "occupation", "zip")),
    "criteo": Source(
        csv("criteo_sample.tsv.gz", separator="\t", has_header=False, new_columns=list(COLUMNS)), "label", COLUMNS[14:]
    ),
    "avazu": Source(csv("avazu_sample.csv.gz", columns=["click", *GIVEN]), "click", GIVEN),
}


def write_table(name: str, data: Path, folder: Path) -> dict[str, Any]:
    """The table as one csv file, training rows first, and what a job says of it."""
    about, file, source = folder / f"{name}.json", folder / f"{name}.csv", SOURCES[name]
    if not about.is_file():
        frame = source.read(data)
        if "split" not in frame.columns:  # by chance, the same at every run
            drawn = np.random.default_rng(0).random(len(frame))
            split = np.array(SPLITS)[np.searchsorted([0.8, 0.9], drawn, side="right")]
            frame = frame.with_columns(split=pl.Series(split))
        parts = [frame.filter(pl.col("split") == split).drop("split") for split in SPLITS]
        pl.concat(parts).write_csv(file)
        facts = {"table": str(file), "rows": [len(part) for part in parts], "label": source.label}
        facts |= {"real": source.real, "categories": list(source.categories), "dates": list(source.dates)}
        about.write_text(json.dumps(facts), encoding="utf-8")
    return json.loads(about.read_text(encoding="utf-8"))


class Contest:
    """Runs jobs that are not finished yet, and reads what they found.

    Args:
        bench: the folder of environments and results.
        minutes: of the budget to look for settings.
    """

    def __init__(self, bench: Path, minutes: float) -> None:
        self.bench, self.minutes = bench, minutes
        self.folder = bench / "tables-results"
        self.folder.mkdir(parents=True, exist_ok=True)

    def python(self, library: str) -> Path:
        if library == OURS:
            return Path(sys.executable)
        python, done = self.bench / "tables" / "bin" / "python", self.bench / "tables" / "complete"
        if not done.exists():
            say("installing CatBoost and LightGBM")
            subprocess.run([sys.executable, "-m", "venv", "--clear", self.bench / "tables"], check=True)
            subprocess.run([python, "-m", "pip", "install", "-q", "-r", HERE / "rivals" / "tables.txt"], check=True)
            done.touch()
        return python

    def _ask(self, library: str, name: str, job: dict[str, Any]) -> dict[str, Any]:
        """What a job reports, from its file if it is finished."""
        result = self.folder / f"{name}.json"
        if not result.is_file():
            file = self.folder / f"{name}.job"
            file.write_text(json.dumps({**job, "answers": str(self.folder / f"{name}.npy")}), encoding="utf-8")
            say(name)
            script = HERE / "rivals" / f"table_{LIBRARIES[library]}.py"
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                [self.python(library), script, file], stdout=subprocess.PIPE, text=True, env=environment
            )
            if done.returncode:
                raise SystemExit(f"{name} failed with status {done.returncode}")
            result.write_text(done.stdout.splitlines()[-1] + "\n", encoding="utf-8")
        return json.loads(result.read_text(encoding="utf-8"))

    def settings(self, library: str, table: str, about: dict[str, Any]) -> dict[str, Any]:
        """What is better than the defaults; none where that was not found."""
        job = {**about, "seed": 0, "minutes": self.minutes}
        found: dict[str, Any] = self._ask(library, f"{table}.{library}.search-{self.minutes:g}", job)["settings"]
        return found

    def run(self, library: str, table: str, about: dict[str, Any], seed: int, *, tuned: bool) -> dict[str, Any]:
        """One training of one library; without settings of its own, tuned is by default."""
        job, kind = {**about, "seed": seed}, "default"
        if tuned and (settings := self.settings(library, table, about)):
            kind = f"tuned-{self.minutes:g}"
            job |= {"settings": settings}
        name = f"{table}.{library}.{kind}.{seed}"
        return {**self._ask(library, name, job), "answers": np.load(self.folder / f"{name}.npy")}


def losses(about: Mapping[str, Any], labels: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Of each row: log loss, or the squared error."""
    if about["real"]:
        return (answers - labels) ** 2
    clipped = np.clip(answers, 1e-7, 1 - 1e-7)
    return -np.where(labels == 1, np.log(clipped), np.log1p(-clipped))


def compare(about: Mapping[str, Any], results: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    """The lines of a table: each library, its seeds averaged, and how far it is from the better trees, row by row."""
    frame = pl.read_csv(about["table"], columns=[about["label"]])
    labels = frame[about["label"]].to_numpy()[-about["rows"][2] :].astype(np.float64)
    each = {who: [losses(about, labels, one["answers"]) for one in ran] for who, ran in results.items()}
    means = {who: np.mean(rows, axis=0) for who, rows in each.items()}  # over the seeds, of each row
    trees = [who for who in means if not who.startswith(OURS)]
    best = min(trees, key=lambda who: means[who].mean()) if trees else None
    lines = []
    for who, ran in results.items():
        answers = [one["answers"] for one in ran]
        first, second = (rmse, r2) if about["real"] else (None, auc)
        scores = [first(labels, one) for one in answers] if first else [float(rows.mean()) for rows in each[who]]
        cells = [who, _spread(scores, 4), _spread([second(labels, one) for one in answers], 4)]
        together = np.mean(answers, axis=0)
        cells.append(f"{first(labels, together) if first else losses(about, labels, together).mean():.4f}")
        if best is None or who in trees:
            cells.append("" if who != best else "(the better trees)")
        else:
            apart = means[who] - means[best]
            cells.append(f"{apart.mean():+.4f} ± {apart.std(ddof=1) / len(apart) ** 0.5:.4f}")
        cells += [f"{statistics.median(one['seconds'] for one in ran):.0f}"]
        cells += [f"{statistics.median(one['rows_per_second'] for one in ran):,.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _spread(values: Sequence[float], digits: int) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.{digits}f} ± {deviation:.{digits}f}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=0.0, help="to look for settings; 0 for defaults only")
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    parser.add_argument("--again", nargs="+", choices=LIBRARIES, default=[], help="forget what these did")
    parser.add_argument("--bench", type=Path, default=HERE.parent / ".bench")
    arguments = parser.parse_args()
    data = os.environ.get("CROSSRANK_DATA")
    if data is None:
        raise SystemExit("CROSSRANK_DATA must name the folder of the tables.")
    contest, tables = Contest(arguments.bench, arguments.minutes), arguments.bench / "tables-csv"
    tables.mkdir(exist_ok=True)
    for library in arguments.again:
        for file in contest.folder.glob(f"*.{library}.*"):
            file.unlink()
    abouts = {name: write_table(name, Path(data), tables) for name in arguments.tables}
    for library in arguments.libraries:
        contest.python(library)
    large_first = sorted(abouts.items(), key=lambda table: -sum(table[1]["rows"]))
    each = [(library, *table) for table in large_first for library in arguments.libraries]

    def train_tuned(one: tuple[str, str, dict[str, Any]], seed: int, search: Future[dict[str, Any]]) -> None:
        if search.result():  # the trainings by default are there already
            contest.run(*one, seed, tuned=True)

    with ThreadPoolExecutor(arguments.jobs) as pool:  # what is printed below is then finished
        jobs: list[Future[Any]]
        jobs = [
            pool.submit(contest.run, *one, seed, tuned=False) for one, seed in product(each, range(arguments.seeds))
        ]
        # in line before those who wait for them
        searches = [pool.submit(contest.settings, *one) for one in each if arguments.minutes]
        for one, search in zip(each if searches else (), searches, strict=True):
            jobs += [pool.submit(train_tuned, one, seed, search) for seed in range(arguments.seeds)]
        for job in jobs:
            job.result()
    for name, about in abouts.items():
        kinds = [
            {
                library + (", tuned" if tuned else ""): [
                    contest.run(library, name, about, seed, tuned=tuned) for seed in range(arguments.seeds)
                ]
                for library in arguments.libraries
            }
            for tuned in (False, True)[: 2 if arguments.minutes else 1]
        ]
        first, second = ("RMSE", "R²") if about["real"] else ("log loss", "AUC")
        loss = "squared error" if about["real"] else "log loss"
        print(f"\n**{name}**, {about['rows'][0]:,} training rows, {about['rows'][2]:,} test rows\n")
        print(f"| library | {first} | {second} | {first}, seeds averaged | {loss} less the better trees", end="")
        print(" | seconds | rows/s scored |\n| --- | --- | --- | --- | --- | ---: | ---: |")
        print("\n".join(line for results in kinds for line in compare(about, results)), flush=True)


if __name__ == "__main__":
    main()
