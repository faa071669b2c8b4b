"""Commands that make and use runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from crossrank.cli.app import (
    ConfigFile,
    Encoding,
    Json,
    OnBadLine,
    OnBadRow,
    Overwrite,
    RunFolder,
    SchemaFile,
    Separator,
    Sets,
    app,
    interruptible,
    number,
    out,
    same_command,
    say,
    table_of,
    talk,
)
from crossrank.cli.rows import Positive, TestRows, TrainRows, ValidRows, open_rows, say_split
from crossrank.errors import ConfigError

Tracked = Literal["tensorboard", "mlflow"]
STILL_IMPROVING = (
    "ended while still improving on the validation rows; raise training.epochs or training.max_steps to go further"
)


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
    into: Annotated[Path, typer.Option(help="The dataset folder to make.")],
    sources: Annotated[
        list[Path] | None, typer.Argument(help="Tables (csv, tsv, parquet), or folders of them.", show_default=False)
    ] = None,
    train_rows: TrainRows = None,
    valid_rows: ValidRows = None,
    test_rows: TestRows = None,
    schema: SchemaFile = None,
    source: Annotated[str | None, typer.Option(help="A known set: criteo, movielens-1m or avazu.")] = None,
    label: Annotated[str | None, typer.Option(help="The label's name, where no schema is given.")] = None,
    positive: Positive = None,
    separator: Separator = None,
    encoding: Encoding = None,
    on_error: OnBadRow = "raise",
    sets: Sets = None,
    overwrite: Overwrite = False,
) -> None:
    """Encode tables into a dataset that training reads at full speed.

    Splits are set with --set split.method=random|time|time-then-random|group|column, split.column=NAME and
    split.fractions=[0.8,0.1,0.1]. A column alone is one that names each row's split.
    """
    from crossrank.config import check_keys, override, parse
    from crossrank.data.prepare import prepare as prepare_dataset
    from crossrank.data.splits import SPLITS, SplitSettings

    values = override({}, sets or [])
    check_keys(values, {"split": SplitSettings()})
    split = parse(SplitSettings, values.get("split", {}), path="split")
    divided = {"train": train_rows, "valid": valid_rows, "test": test_rows}
    if source:
        given = {
            "schema": schema, "label": label, "positive": positive, "separator": separator, "encoding": encoding
        }  # fmt: skip
        _refuse(f"--source {source}, which says so itself", **given, **divided)
        from crossrank.data.sources import open_source

        table, meaning, usual = open_source(source, sources or [], on_error=on_error)
        split = split if "split" in values else usual
    else:
        table = open_rows(sources, divided, separator=separator, encoding=encoding, on_error=on_error)
        meaning = _schema(table, schema, label, positive, split=split)
    split = say_split(split, table, meaning)
    dataset = prepare_dataset(table, meaning, into, split=split, on_error=on_error, overwrite=overwrite)
    rows = dataset.num_rows
    _say_skipped(table)
    for name, share in zip(SPLITS, split.fractions, strict=False):
        if share and name not in rows and not split.may_lack_test:
            say(f"warning: {sum(rows.values()):,} rows are so few that none is a {name} row")
    say(f"dataset: {into} ({', '.join(f'{name} {count:,}' for name, count in rows.items())} rows)")


@app.command(epilog="Example: crossrank train clicks.csv --into runs/first --set model.cross.num_layers=3 --seeds 5")
def train(
    into: Annotated[Path, typer.Option(help="The run folder to make.")],
    data: Annotated[
        Path | None,
        typer.Argument(help="A dataset made by `prepare`, or a table (csv, tsv, parquet).", show_default=False),
    ] = None,
    train_rows: TrainRows = None,
    valid_rows: ValidRows = None,
    test_rows: TestRows = None,
    config: ConfigFile = None,
    sets: Sets = None,
    schema: SchemaFile = None,
    label: Annotated[str | None, typer.Option(help="The label's name, where no schema is given.")] = None,
    positive: Positive = None,
    separator: Separator = None,
    encoding: Encoding = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same weights.")] = 0,
    seeds: Annotated[int, typer.Option(help="Train this many models; report mean and deviation.", min=1)] = 1,
    ensemble: Annotated[
        int | None, typer.Option(help="Train this many seeds as one model that answers their mean.", min=1)
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted training.")] = False,
    profile: Annotated[bool, typer.Option(help="Tell where the time of a step goes.")] = False,
    track: Annotated[Tracked | None, typer.Option(help="Tell an experiment tracker how it goes.")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train a model, measure it on the test rows, and save it as a run folder."""
    from crossrank.config import load_toml, override
    from crossrank.data import EncodedDataset
    from crossrank.training import Config, train_seeds
    from crossrank.training import train as train_run
    from crossrank.training.profile import StepClock

    sets = [*(sets or []), *([f"model.ensemble={ensemble}"] if ensemble else [])]
    settings = override(load_toml(config) if config else {}, sets)
    split = Config.parse(settings).split  # before anything is read
    divided = {"train": train_rows, "valid": valid_rows, "test": test_rows}
    meaning, opened = None, open_rows(data, divided, separator=separator, encoding=encoding)
    if isinstance(opened, EncodedDataset):
        given = {
            "schema": schema, "label": label, "positive": positive, "separator": separator, "encoding": encoding
        }  # fmt: skip
        _refuse("a prepared dataset, which has its schema", **given)
    else:
        meaning = _schema(opened, schema, label, positive, split=split)
        say_split(split, opened, meaning)
    options: dict[str, Any] = {"config": settings, "schema": meaning, "overwrite": overwrite, "track": track}
    if seeds > 1:
        _refuse(f"--seeds {seeds}, which trains the seeds 0 to {seeds - 1}", seed=seed or None, profile=profile or None)
        with interruptible(lambda: f"the same command goes on with it: {same_command()}"):
            summary = train_seeds(opened, into=into, seeds=seeds, **options)
        _show_spread(summary, as_json)
        if summary["still_improving"]:
            say(f"note: {summary['still_improving']} of {seeds} seeds {STILL_IMPROVING}")
    else:
        clock = StepClock() if profile else None
        with interruptible(lambda: _how_to_resume(into)):
            run = train_run(opened, into=into, seed=seed, resume=resume, clock=clock, **options)
        if clock:
            _show_profile(clock.rows())
        _show_metrics(run.report["test" if "test" in run.report else "valid"], as_json)
        if "test" not in run.report:
            say("note: there are no test rows; these are the validation rows, which also chose the weights")
        if "warning" in run.report["training"]:
            say(f"warning: {run.report['training']['warning']}")
        if run.report["training"]["still_improving"]:
            say(f"note: the training {STILL_IMPROVING}")
        _report(into)
    say(f"run folder: {into}")


@app.command(epilog="Example: crossrank evaluate runs/first later.csv --json")
def evaluate(
    run: RunFolder,
    data: Annotated[
        Path | None, typer.Argument(help="A dataset or a table; left out, the stored test metrics.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Which rows of a dataset: train, valid or test; left out, test.")
    ] = None,
    separator: Separator = None,
    encoding: Encoding = None,
    on_error: OnBadLine = "raise",
    as_json: Json = False,
) -> None:
    """Measure a trained model."""
    from crossrank.data import EncodedDataset, open_data
    from crossrank.evaluation.evaluate import evaluate_with_intervals as measure
    from crossrank.runs import Run

    opened = Run.open(run)
    if data is None:
        _show_metrics(_stored(opened, split or "test"), as_json)
        return
    table = open_data(data, separator=separator, encoding=encoding, on_error=on_error)
    if isinstance(table, EncodedDataset):
        _show_metrics(measure(opened, table, split=split or "test"), as_json)
        return
    _refuse("a table, of which all rows are measured", split=split)
    metrics = measure(opened, table)
    _say_skipped(table)
    _show_metrics(metrics, as_json)
    rows = opened.info.get("rows", {})
    if metrics["rows"] == sum(rows.values()):
        say(
            f"note: if this is the table that {run} was trained on, it learned {rows['train']:,} of these "
            f"{metrics['rows']:,} rows; its test rows alone: crossrank evaluate {run}"
        )


@app.command(epilog="Example: crossrank predict runs/first today.parquet --into scored.parquet")
def predict(
    run: RunFolder,
    table: Annotated[Path, typer.Argument(help="Raw rows (csv, tsv, parquet); the label is not needed.")],
    into: Annotated[Path, typer.Option(help="The table to write: csv, tsv or parquet, by its suffix.")],
    column: Annotated[
        str | None, typer.Option(help="The new column's name; left out, probability, or prediction of a number.")
    ] = None,
    separator: Separator = None,
    encoding: Encoding = None,
    on_error: OnBadLine = "raise",
    overwrite: Overwrite = False,
) -> None:
    """Write a table again with the model's answer for each row."""
    from crossrank.data.table import open_table
    from crossrank.runs import Run
    from crossrank.serving.tables import predict_table

    opened, rows = Run.open(run), open_table(table, separator=separator, encoding=encoding, on_error=on_error)
    count = predict_table(opened, rows, into, column=column, overwrite=overwrite)
    _say_skipped(rows)
    say(f"{count:,} rows: {into}")


def _refuse(where: str, **given: Any) -> None:
    """Refuse options that would be ignored."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"--{name} does not go with {where}; got '{value}'.", hint=f"Leave --{name} out.")


def _say_skipped(table: Any) -> None:
    for reason, count in table.skipped.items():
        say(f"left out {count:,} rows: {reason}")


def _how_to_resume(into: Path) -> str:
    from crossrank.runs.lifecycle import is_interrupted

    if not is_interrupted(into):
        return "there was no evaluation yet to go on from, so nothing is kept"
    return f"go on from the last evaluation with: {same_command('--resume')}"


def _schema(table: Any, schema: Path | None, label: str | None, positive: str | None, *, split: Any) -> Any:
    """The schema from a file, or a draft that is shown to the person; and warnings about its columns."""
    from crossrank.data.describe import column_warnings
    from crossrank.data.drafting import draft_table
    from crossrank.schema import Schema

    head = table.head()
    if schema is not None:
        _refuse("--schema, whose label has its classes", positive=positive)
        meaning = Schema.load(schema)
    else:
        draft = draft_table(table, label=label, positive=positive, split=split.names_column)
        meaning = draft.schema
        target = meaning.label
        counted = f" ('{target.classes[1]}' counts as 1)" if target.classes and target.kind == "binary" else ""
        say(f"no --schema: drafted one, with the {target.kind} label '{target.name}'{counted} and")
        for line in draft.lines():
            say(line)
    for warning in column_warnings(head, meaning):
        say(f"warning: {warning}")
    return meaning


def _stored(run: Any, split: str) -> dict[str, Any]:
    """The metrics that training measured, with their intervals where it kept them."""
    from crossrank.errors import RunError, listing

    kept = [name for name in ("valid", "test") if name in run.report]
    if split not in kept:
        hint = "Give the dataset it was trained on."
        raise RunError(f"A run keeps the metrics of {listing(kept)}; got '{split}'.", hint=hint)
    known = run.curves.get("intervals") if run.curves.get("split") == split else None
    return {**run.report[split], **({"intervals": known} if known else {})}


def _show_metrics(metrics: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(metrics))
        return
    intervals = metrics.get("intervals", {})
    table = table_of("metric", "value", *(["95% interval"] if intervals else []), title="")
    for name, value in metrics.items():
        if name != "intervals":
            ends = " to ".join(map(number, intervals.get(name, [])))
            table.add_row(name, number(value), *([ends] if intervals else []))
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
    split = "test" if "test" in summary else "valid"
    table = table_of("metric", "mean", "deviation", title=f"{split} rows, {summary['seeds']} seeds")
    for name, spread in summary[split].items():
        table.add_row(name, f"{spread['mean']:.5f}", f"{spread['deviation']:.5f}")
    out.print(table)


def _report(run: Path) -> None:
    """Write the page about a finished run."""
    from crossrank.reports import write_report

    say(f"report: {write_report(run)}")
