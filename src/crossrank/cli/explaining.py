"""Commands that say what a model has learned."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossrank.cli.app import Encoding, Json, Overwrite, Separator, app, new_path, number, out, runs_from, say, table_of
from crossrank.errors import ConfigError
from crossrank.results import Cross, Spectrum
from crossrank.shapes import checked

if TYPE_CHECKING:
    from crossrank.runs import Run


@dataclasses.dataclass(frozen=True)
class Found:
    """An answer of ``explain``: for programs, and for people."""

    values: Any
    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""
    absent: str = "this model has no cross layers"


@app.command(epilog="Example: crossrank explain runs/first --top 20")
def explain(
    run: Annotated[
        Path, typer.Argument(help="A run folder, or a folder of seeds with --seeds.", autocompletion=runs_from)
    ],
    top: Annotated[int, typer.Option(help="How many pairs, or features.")] = 15,
    layer: Annotated[int | None, typer.Option(help="Only this cross layer, counted from 1.")] = None,
    directed: Annotated[bool, typer.Option(help="Each direction of a pair on its own.")] = False,
    selves: Annotated[bool, typer.Option(help="What a feature does crossed with itself.")] = False,
    features: Annotated[bool, typer.Option(help="What each single feature is worth.")] = False,
    row: Annotated[str | None, typer.Option(help="A row as a JSON object: what moved its logit.")] = None,
    spectrum: Annotated[bool, typer.Option(help="Numerical rank of each cross layer, and advice.")] = False,
    seeds: Annotated[bool, typer.Option(help="Which pairs hold up over the seeds of a folder of runs.")] = False,
    as_json: Json = False,
) -> None:
    """List the pairs of features whose learned cross moves the answer most, or what single features are worth."""
    if features:
        found = _features(run, top=top)
    elif seeds:
        found = _stable(run, top=top, layer=layer, directed=directed)
    elif row is not None:
        found = _row(run, row, top=top)
    elif spectrum:
        found = _spectrum(run)
    else:
        found = _strongest(run, top=top, layer=layer, directed=directed, selves=selves)
    if as_json:
        print(json.dumps(found.values))
        return
    if not found.rows and found.absent:
        say(found.absent)
    table = table_of(*found.columns, title=found.title)
    for line in found.rows:
        table.add_row(*line)
    out.print(table)
    if found.note:
        say(found.note)


@app.command(epilog="Example: crossrank report runs/first runs/second --into comparison.html")
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several are compared.", autocompletion=runs_from)],
    into: Annotated[Path | None, new_path("The page to write; left out, report.html in the first run.")] = None,
    group_column: Annotated[str | None, typer.Option(help="Break the metrics down by this column.")] = None,
    data: Annotated[Path | None, typer.Option(help="A dataset or table to draw the curves from.")] = None,
    separator: Separator = None,
    encoding: Encoding = None,
) -> None:
    """Write one self-contained page about a run: metrics, curves, crosses, spectra, settings."""
    from crossrank.data import open_data
    from crossrank.reports import write_report
    from crossrank.runs import Run

    opened = open_data(data, separator=separator, encoding=encoding) if data else None
    say(f"report: {write_report([Run.open(run) for run in runs], into, group_column=group_column, data=opened)}")


@app.command(epilog="Example: crossrank compress runs/first --rank auto --dataset data/clicks --into runs/small")
def compress(
    run: Annotated[
        Path, typer.Argument(help="A run of a DCN-V2 with full-rank cross layers.", autocompletion=runs_from)
    ],
    into: Annotated[Path, new_path("The run folder to make.")],
    rank: Annotated[str, typer.Option(help="The new rank, or auto: the smallest that keeps the quality.")] = "auto",
    dataset: Annotated[
        Path | None, typer.Option(help="The dataset it was trained on, to weigh and to measure by.")
    ] = None,
    finetune_steps: Annotated[int, typer.Option(help="Steps towards the full model's answers; 0 for none.")] = 200,
    overwrite: Overwrite = False,
) -> None:
    """Turn a full-rank model into a low-rank one, and show what it costs and gains."""
    from crossrank.config import flatten
    from crossrank.data import EncodedDataset
    from crossrank.experiments.compress import compress as shrink
    from crossrank.runs import Run

    if rank != "auto" and not rank.isdecimal():
        raise typer.BadParameter(f"must be a whole number or auto; got '{rank}'", param_hint="--rank")
    found = shrink(
        Run.open(run),
        into=into,
        rank="auto" if rank == "auto" else int(rank),
        dataset=EncodedDataset.open(dataset) if dataset else None,
        finetune_steps=finetune_steps,
        overwrite=overwrite,
    )
    table = table_of("", "before", "after", title=f"rank {found.rank}")
    after = flatten(found.after)
    for name, before in flatten(found.before).items():
        table.add_row(name.replace(".", " "), number(before), number(after[name]))
    out.print(table)
    times = ", ".join(f"{ratio:.2f} times as fast at batch {size}" for size, ratio in found.speedup.items())
    fewer = 1 - found.after["parameters"] / found.before["parameters"]
    say(f"rank {found.rank}: {fewer:.0%} fewer parameters outside the tables; {times}")
    say(f"run folder: {into}")


@app.command(epilog="Example: crossrank promote runs/first data/clicks --into runs/second")
def promote(
    run: Annotated[Path, typer.Argument(help="A run of a model such as dcn-v2.", autocompletion=runs_from)],
    data: Annotated[Path, typer.Argument(help="What it was trained on: a dataset, or the table.")],
    into: Annotated[Path, new_path("The run folder to make.")],
    seeds: Annotated[int, typer.Option(help="Times that each comparison is made.")] = 5,
    most: Annotated[int, typer.Option(help="Pairs to try.")] = 3,
    overwrite: Overwrite = False,
) -> None:
    """Find the pairs of columns that a model misses, and go on training with a memory of those that pay."""
    from crossrank.experiments.promote import promote as find

    found = find(run, data, into=into, seeds=seeds, most=most, overwrite=overwrite)
    tried = {one.columns: one for one in found.tried}
    table = table_of("pair", "expected gain", "gain", "±", "", title="what a memory of each pair takes off the loss")
    for one in found.missed[: max(most, 10)]:
        made = tried.get(one.columns)
        kept = "" if made is None else "kept" if made.pays else "dropped"
        numbers = (None, None) if made is None else (made.gain, made.error)
        table.add_row(" x ".join(one.columns), number(one.gain), *map(number, numbers), kept)
    out.print(table)
    if found.run is None:
        say("no pair pays, so no run was made" if tried else "no pair is missed, so no run was made")
    else:
        say(f"run folder: {into}")


def _strongest(run: Path, *, top: int, layer: int | None, directed: bool, selves: bool) -> Found:
    from crossrank.evaluation import explain as strongest
    from crossrank.runs import Run

    opened = Run.open(run)
    crosses = strongest(opened, top=top, layer=layer, directed=directed, selves=selves)
    place = _places(crosses)
    rows = [(_name(one, directed), place(one), f"{one.strength:.4f}", f"{one.norm:.3f}") for one in crosses]
    title = f"strength: how far the cross moves the {_answer(opened)}; norm: of its block of W"
    values, note = [one.to_dict() for one in crosses], "\n".join(opened.unexplained)
    absent = "" if note else Found.absent
    return Found(values, title, ("cross", "layer", "strength", "norm"), rows, note=note, absent=absent)


def _answer(run: Run) -> str:
    return {"binary": "logit", "grade": "score"}.get(run.schema.label.kind, "prediction")


def _features(run: Path, *, top: int) -> Found:
    from crossrank.runs import Run

    opened = Run.open(run)
    features = opened.importance[:top]
    rows = [(one["feature"], f"{one['importance']:.5f}", f"{one['deviation']:.5f}") for one in features]
    metric = {"real": "RMSE", "grade": "loss 1 - NDCG@10"}.get(opened.schema.label.kind, "log loss")
    title = f"importance: how much the {metric} rises when a feature is shuffled"
    absent = "this run was trained before importance was kept: train it again"
    return Found(features, title, ("feature", "importance", "deviation"), rows, absent=absent)


def _stable(folder: Path, *, top: int, layer: int | None, directed: bool) -> Found:
    from crossrank.evaluation.stability import stability
    from crossrank.runs import Run

    runs = [Run.open(path.parent) for path in sorted(folder.glob("seed-*/run.json"))]
    crosses = stability(runs, top=top, layer=layer, directed=directed)
    rows = [
        (_name(one.cross, directed), str(one.cross.layer), f"{one.mean_rank:.1f}", f"{one.best_rank}–{one.worst_rank}")
        for one in crosses
    ]
    title = f"rank of each cross over {len(runs)} seeds; 1 is a run's strongest"
    return Found([one.to_dict() for one in crosses], title, ("cross", "layer", "mean rank", "range"), rows)


def _row(run: Path, text: str, *, top: int) -> Found:
    from crossrank.evaluation import explain_row
    from crossrank.runs import Run

    example = 'Example: --row \'{"user": "u7"}\''
    try:
        row = checked(dict[str, Any], json.loads(text))
    except ConfigError as error:
        raise ConfigError(f"--row must be a JSON object; {error.message}", hint=example) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--row must be a JSON object; {error}.", hint=example) from None
    opened = Run.open(run)
    found, answer = explain_row(opened, row), _answer(opened)
    rows = [(one["feature"], f"{one['contribution']:+.4f}") for one in found.alone]
    rows += [(f"{one['left']} × {one['right']}", f"{one['contribution']:+.4f}") for one in found.pairs]
    rows.sort(key=lambda line: -abs(float(line[1])))
    note = (
        f"{answer} {found.logit:.4f}, of the average row {found.base:.4f}; method: {found.method}, "
        f"the sum of all parts misses the {answer} by {abs(found.difference):.2g}"
    )
    return Found(
        dataclasses.asdict(found), f"what moves the {answer} of this row", ("feature or cross", "by"), rows[:top], note
    )


def _spectrum(run: Path) -> Found:
    from crossrank.evaluation.advice import advise
    from crossrank.evaluation.spectrum import numerical_rank
    from crossrank.runs import Run

    opened = Run.open(run)
    spectra = opened.spectrum
    tolerances = (0.5, 0.1, 0.01)
    place = _places(spectra)
    rows = [
        (f"{place(one)} {name}", *(str(numerical_rank(values, tolerance)) for tolerance in tolerances))
        for one in spectra
        for name, values in (("initial", one.initial), ("learned", one.values), ("as used", one.used))
        if values
    ]
    advice = advise(spectra, opened.model_settings, opened.encoder.features) if spectra else None
    columns = ("layer", *(f"R at T = {tolerance}" for tolerance in tolerances))
    title = "numerical rank: singular values of at least T times the largest"
    return Found([one.to_dict() for one in spectra], title, columns, rows, advice.text if advice else "")


def _places(found: Sequence[Cross] | Sequence[Spectrum]) -> Callable[[Cross | Spectrum], str]:
    """How a layer is called: by its number, and where there are several networks, by the network's in front."""
    several = len({one.network for one in found}) > 1
    return lambda one: f"{one.network}.{one.layer}" if several else str(one.layer)


def _name(cross: Cross, directed: bool) -> str:
    return " → ".join(cross.features) if directed else cross.name
