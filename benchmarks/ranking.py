"""Graded ranking: NDCG@10 of crossrank's losses beside LightGBM's lambdarank.

    python benchmarks/ranking.py                                   both tables, five seeds
    python benchmarks/ranking.py --tables sample --seeds 2
    python benchmarks/ranking.py --again crossrank                 forget what crossrank did

- **sample**: LightGBM's own example, 300 sparse numbers; 201 training queries, of which 40 validate, 50 test queries
- **movielens**: 300 users of MovieLens-1M, each a group, their ratings as grades; a tenth of the rows tests, a tenth
  validates; user, film, gender, age, occupation and zip code as categories

The test rows are the same for all seeds; a seed draws the validation rows from the others, and is the seed of the
model. Each library trains in a process of its own, on one thread, and stops by NDCG@10 of the same validation rows.
crossrank has the settings that it fills in itself, numbers as scalars, and each loss in turn. LightGBM has its
defaults, and three settings of which the validation rows choose the best. The data are found by ``CROSSRANK_DATA``.

What is finished is kept under .bench/ranking, and the same command goes on from there. The page goes to standard
output, progress to standard error.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from tables import HERE, SPLITS, Contest, say

from crossrank.evaluation.metrics import ndcg

LOSSES = ("logloss", "pairwise", "lambdarank", "listwise")
TREES = ("LightGBM, defaults", "LightGBM, best of three settings")
LABEL = "grade"


def sample(data: Path, seed: int) -> tuple[pl.DataFrame, str, list[str]]:
    """Rows with their split, the group, and the categories."""
    frame = pl.read_csv(data / "ranking_sample.csv.gz", infer_schema=False)
    queries = frame.filter(pl.col("split") == "train")["query"].unique(maintain_order=True)
    valid = queries.sample(40, seed=seed, shuffle=True)
    drawn = pl.when(pl.col("query").is_in(valid.implode())).then(pl.lit("valid")).otherwise(pl.col("split"))
    return frame.with_columns(split=drawn), "query", []


def movielens(data: Path, seed: int) -> tuple[pl.DataFrame, str, list[str]]:
    columns = {"ratings": ("user", "movie", LABEL, "time"), "users": ("user", "gender", "age", "occupation", "zip")}
    with zipfile.ZipFile(data / "ml-1m.zip") as archive:
        ratings, users = (
            pl.read_csv(
                io.StringIO(archive.read(f"ml-1m/{name}.dat").decode("latin-1").replace("::", "\t")),
                separator="\t", has_header=False, new_columns=list(names), infer_schema=False,
            )
            for name, names in columns.items()
        )  # fmt: skip
    some = users["user"].sample(300, seed=0, shuffle=True)
    frame = ratings.filter(pl.col("user").is_in(some.implode())).join(users, on="user", maintain_order="left")
    rest = np.random.default_rng(seed).random(len(frame))
    test = np.random.default_rng(1000).random(len(frame)) < 0.1
    split = np.where(test, "test", np.where(rest < 1 / 9, "valid", "train"))
    return frame.drop("time").with_columns(split=pl.Series(split)), "user", ["user", "movie", *columns["users"][1:]]


SOURCES = {"sample": sample, "movielens": movielens}


def write_table(name: str, data: Path, folder: Path, seed: int) -> dict[str, Any]:
    """The rows as one csv file, training rows first, each part sorted by group; and what a job says of it."""
    about, file = folder / f"{name}.{seed}.json", folder / f"{name}.{seed}.csv"
    if not about.is_file():
        frame, group, categories = SOURCES[name](data, seed)
        parts = [frame.filter(pl.col("split") == split).drop("split").sort(group) for split in SPLITS]
        pl.concat(parts).write_csv(file)
        facts = {"table": str(file), "rows": list(map(len, parts)), "label": LABEL, "group": group}
        facts |= {"real": False, "categories": categories, "dates": [], "seed": seed}
        about.write_text(json.dumps(facts), encoding="utf-8")
    return json.loads(about.read_text(encoding="utf-8"))


def ask(contest: Contest, name: str, library: str, job: dict[str, Any]) -> tuple[np.ndarray, float]:
    """What a library answers to the test rows, and its seconds; from its files if it is finished."""
    answers, result = contest.folder / f"{name}.npy", contest.folder / f"{name}.result"
    if not result.is_file():
        say(name)
        file = contest.folder / f"{name}.job"
        file.write_text(json.dumps({**job, "answers": str(answers)}), encoding="utf-8")
        command = [contest.python(library), HERE / "rivals" / f"ranking_{library.lower()}.py", file]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
        if done.returncode:
            raise SystemExit(f"{name} failed with status {done.returncode}")
        result.write_text(done.stdout.splitlines()[-1], encoding="utf-8")
    return np.load(answers), json.loads(result.read_text(encoding="utf-8"))["seconds"]


def by_group(about: dict[str, Any], answers: np.ndarray) -> np.ndarray:
    """NDCG@10 of each group of the test rows that has one."""
    columns = [about["label"], about["group"]]
    test = pl.read_csv(about["table"], columns=columns, infer_schema=False).tail(about["rows"][2])
    labels, groups = test[LABEL].cast(pl.Float64).to_numpy(), test[about["group"]].to_numpy()
    each = [groups == group for group in np.unique(groups)]
    found = np.array([ndcg(labels[rows], answers[rows], groups[rows], k=10) for rows in each])
    return found[~np.isnan(found)]


def compare(name: str, data: Path, contest: Contest, seeds: int) -> None:
    """Print the table of a set of rows."""
    found: dict[str, list[np.ndarray]] = {}
    seconds: dict[str, list[float]] = {}
    for seed in range(seeds):
        about = write_table(name, data, contest.folder, seed)
        jobs = {who: ("LightGBM", {"settings": {"tuned": who != TREES[0]}}) for who in TREES}
        jobs |= {f"crossrank, {loss}": ("crossrank", {"settings": {"training": {"loss": loss}}}) for loss in LOSSES}
        for who, (library, more) in jobs.items():
            file = f"{name}.{who.replace(', ', '-').replace(' ', '-')}.{seed}"
            answers, took = ask(contest, file, library, about | more)
            found.setdefault(who, []).append(by_group(about, answers))
            seconds.setdefault(who, []).append(took)
    means = {who: np.mean(each, axis=0) for who, each in found.items()}  # over the seeds, of each group
    best = max(TREES, key=lambda who: means[who].mean())
    rows, groups = about["rows"], len(means[best])
    print(f"\n**{name}**, {rows[0]:,} training rows, {rows[2]:,} test rows in {groups:,} groups\n")
    print("| model | NDCG@10 | more than the better LightGBM | seconds |\n| --- | --- | --- | ---: |")
    for who, each in found.items():
        scores, apart = [float(one.mean()) for one in each], means[who] - means[best]
        error = apart.std(ddof=1) / len(apart) ** 0.5
        spread = statistics.stdev(scores) if seeds > 1 else 0.0
        less = "" if who == best else f"{apart.mean():+.4f} ± {error:.4f}"
        took = statistics.median(seconds[who])
        print(f"| {who} | {statistics.fmean(scores):.4f} ± {spread:.4f} | {less} | {took:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--again", nargs="+", choices=["crossrank", "LightGBM"], default=[], help="forget them")
    parser.add_argument("--bench", type=Path, default=HERE.parent / ".bench")
    arguments = parser.parse_args()
    data = os.environ.get("CROSSRANK_DATA")
    if data is None:
        raise SystemExit("CROSSRANK_DATA must name the folder of the tables.")
    contest = Contest(arguments.bench, 0)
    contest.folder = arguments.bench / "ranking"
    contest.folder.mkdir(parents=True, exist_ok=True)
    for library in arguments.again:
        for file in contest.folder.glob(f"*.{library}-*"):
            file.unlink()
    for name in arguments.tables:
        compare(name, Path(data), contest, arguments.seeds)


if __name__ == "__main__":
    main()
