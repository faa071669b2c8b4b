"""Commands that make and use runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from crossrank.cli.app import (
    ConfigFile,
    Json,
    OnError,
    Overwrite,
    RunFolder,
    SchemaFile,
    Sets,
    app,
    number,
    out,
    say,
    table_of,
    talk,
)

Tracked = Literal["tensorboard", "mlflow"]


@app.command(epilog="Example: crossrank demo --into runs/demo")
def demo(
    into: Annotated[Path, typer.Option(help="The folder to make.")] = Path("runs/demo"),
    rows: Annotated[int, typer.Option(help="Rows of the generated click log.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Of the click log and of the models.")] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Train three models on a generated click log and see which crosses they found."""
    from crossrank.experiments.demo import run_demo

    result = run_demo(into, rows=rows, seed=seed, overwrite=overwrite, say=say)
    table = table_of("model", "log loss", "AUC", "parameters", "seconds", title="test rows, lower log loss is better")
    for model in result.models:
        table.add_row(
            model.name, f"{model.logloss:.4f}", f"{model.auc:.4f}", f"{model.parameters:,}", f"{model.seconds:.0f}"
        )
    table.add_row("best reachable", f"{result.best_logloss:.4f}", f"{result.best_auc:.4f}", "", "")
    out.print(table)
    crosses = table_of("cross", "strength", "planted", title="strongest crosses learned by DCN-V2")
    for cross in result.crosses:
        crosses.add_row(cross.name, f"{cross.strength:.3f}", "yes" if cross.planted else "")
    out.print(crosses)
    _report(result.run)
    say(f"run folder: {result.run}")
    say(f"next: crossrank explain {result.run} --top 20")


@app.command(epilog="Example: crossrank prepare clicks.csv --schema schema.json --into data/clicks")
def prepare(
    sources: Annotated[list[Path], typer.Argument(help="Tables (csv, tsv, parquet), or folders of them.")],
    into: Annotated[Path, typer.Option(help="The dataset folder to make.")],
    schema: SchemaFile = None,
    source: Annotated[str | None, typer.Option(help="A known set: criteo, movielens-1m or avazu.")] = None,
    label: Annotated[str | None, typer.Option(help="The label's name, where no schema is given.")] = None,
    separator: Annotated[str | None, typer.Option(help="What stands between two fields; guessed if left out.")] = None,
    on_error: Annotated[OnError, typer.Option(help="What a bad row does: raise, or skip and count it.")] = "raise",
    sets: Sets = None,
    overwrite: Overwrite = False,
) -> None:
    """Encode tables into a dataset that training reads at full speed.

    Splits are set with --set split.method=random|time|time-then-random|group, split.column=NAME and
    split.fractions=[0.8,0.1,0.1].
    """
    from crossrank.config import override, parse
    from crossrank.data.prepare import prepare as prepare_dataset
    from crossrank.data.splits import SplitSettings
    from crossrank.data.table import open_table

    values = override({}, sets or [])
    if source:
        from crossrank.data.sources import open_source

        table, meaning, split = open_source(source, sources, on_error=on_error)
    else:
        table = open_table(sources, separator=separator, on_error=on_error)
        meaning, split = _schema(table, schema, label), SplitSettings()
    if "split" in values:
        split = parse(SplitSettings, values["split"], path="split")
    dataset = prepare_dataset(table, meaning, into, split=split, on_error=on_error, overwrite=overwrite)
    rows = {name: split["rows"] for name, split in dataset.manifest["splits"].items()}
    for reason, count in table.skipped.items():
        say(f"left out {count:,} rows: {reason}")
    say(f"dataset: {into} ({', '.join(f'{name} {count:,}' for name, count in rows.items())} rows)")


@app.command(epilog="Example: crossrank train clicks.csv --into runs/first --set model.cross.num_layers=3 --seeds 5")
def train(
    data: Annotated[Path, typer.Argument(help="A dataset made by `prepare`, or a table (csv, tsv, parquet).")],
    into: Annotated[Path, typer.Option(help="The run folder to make.")],
    config: ConfigFile = None,
    sets: Sets = None,
    schema: SchemaFile = None,
    label: Annotated[str | None, typer.Option(help="The label's name, where no schema is given.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same weights.")] = 0,
    seeds: Annotated[int, typer.Option(help="Train this many models; report mean and deviation.", min=1)] = 1,
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted training.")] = False,
    profile: Annotated[bool, typer.Option(help="Tell where the time of a step goes.")] = False,
    track: Annotated[Tracked | None, typer.Option(help="Tell an experiment tracker how it goes.")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train a model, measure it on the test rows, and save it as a run folder."""
    from crossrank.config import load_toml, override
    from crossrank.training import Config, train_seeds
    from crossrank.training import train as train_run
    from crossrank.training.profile import StepClock

    settings = override(load_toml(config) if config else {}, sets or [])
    Config.parse(settings)  # before anything is read
    meaning = None
    if not (data / "manifest.json").is_file():
        from crossrank.data.table import open_table

        meaning = _schema(open_table(data), schema, label)
    if seeds > 1:
        summary = train_seeds(
            data, into=into, seeds=seeds, config=settings, schema=meaning, overwrite=overwrite, track=track
        )
        _show_spread(summary, as_json)
    else:
        clock = StepClock() if profile else None
        options: dict[str, Any] = {
            "schema": meaning,
            "seed": seed,
            "resume": resume,
            "overwrite": overwrite,
            "clock": clock,
            "track": track,
        }
        run = train_run(data, into=into, config=settings, **options)
        if clock:
            _show_profile(clock.rows())
        _show_metrics(run.report["test"], as_json)
        _report(into)
    say(f"run folder: {into}")


@app.command(epilog="Example: crossrank evaluate runs/first later.csv --json")
def evaluate(
    run: RunFolder,
    data: Annotated[
        Path | None, typer.Argument(help="A dataset or a table; left out, the stored test metrics.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which rows of a dataset: train, valid or test.")] = "test",
    as_json: Json = False,
) -> None:
    """Measure a trained model."""
    from crossrank.evaluation import evaluate as measure
    from crossrank.runs import Run

    opened = Run.open(run)
    _show_metrics(opened.report[split] if data is None else measure(opened, data, split=split), as_json)


@app.command(epilog="Example: crossrank predict runs/first today.parquet --into scored.parquet")
def predict(
    run: RunFolder,
    table: Annotated[Path, typer.Argument(help="Raw rows (csv, tsv, parquet); the label is not needed.")],
    into: Annotated[Path, typer.Option(help="The table to write: csv, tsv or parquet, by its suffix.")],
    column: Annotated[str, typer.Option(help="The name of the new column.")] = "probability",
    overwrite: Overwrite = False,
) -> None:
    """Write a table again with the model's probability for each row."""
    from crossrank.runs import Run
    from crossrank.serving.tables import predict_table

    rows = predict_table(Run.open(run), table, into, column=column, overwrite=overwrite)
    say(f"{rows:,} rows: {into}")


def _schema(table: Any, schema: Path | None, label: str | None) -> Any:
    """The schema from a file, or a draft that is shown to the person."""
    from crossrank.schema import Schema

    if schema is not None:
        return Schema.load(schema)
    draft = Schema.infer(table.head(), label=label)
    kinds: dict[str, list[str]] = {}
    for column in draft.features:
        kinds.setdefault(column.kind, []).append(column.name)
    say(f"no --schema: drafted one, with the {draft.label.kind} label '{draft.label.name}' and")
    for kind, names in kinds.items():
        say(f"  {kind}: {', '.join(names)}")
    left_out = [name for name in table.columns if name not in set(draft.required)]
    if left_out:
        say(f"  left out: {', '.join(left_out)}")
    return draft


def _show_metrics(metrics: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(metrics))
        return
    table = table_of("metric", "value", title="")
    for name, value in metrics.items():
        table.add_row(name, number(value))
    out.print(table)


def _show_profile(rows: list[tuple[str, str, float, float]]) -> None:
    table = table_of("part", "ms a step", "share", "meaning", title="where the time of a step goes", text=("meaning",))
    for part, about, milliseconds, share in rows:
        table.add_row(part, f"{milliseconds:.3f}", f"{share:.1%}", about)
    talk.print(table)


def _show_spread(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary))
        return
    table = table_of("metric", "mean", "deviation", title=f"test rows, {summary['seeds']} seeds")
    for name, spread in summary["test"].items():
        table.add_row(name, f"{spread['mean']:.5f}", f"{spread['deviation']:.5f}")
    out.print(table)


def _report(run: Path) -> None:
    """Write the page about a finished run."""
    from crossrank.reports import write_report

    say(f"report: {write_report(run)}")
