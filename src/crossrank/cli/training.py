"""Commands that make runs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from crossrank.cli.app import (
    ConfigFile,
    Encoding,
    Engine,
    Json,
    OnBadRow,
    Overwrite,
    SchemaFile,
    Separator,
    Sets,
    app,
    interruptible,
    new_path,
    out,
    same_command,
    say,
    table_of,
    talk,
)
from crossrank.cli.given_rows import (
    LabelName,
    Positive,
    TestRows,
    TrainRows,
    ValidRows,
    open_rows,
    say_split,
    schema_of,
)
from crossrank.cli.scoring import refuse, say_skipped, show_metrics
from crossrank.cli.workers import let_the_first_talk, on_ray, train_with_workers
from crossrank.errors import listing

Tracked = Literal["tensorboard", "mlflow"]
STILL_IMPROVING = (
    "ended while still improving on the validation rows; raise training.epochs or training.max_steps to go further"
)


@app.command(epilog="Example: crossrank demo --into runs/demo")
def demo(
    into: Annotated[Path, new_path("The folder to make.")] = Path("runs/demo"),
    rows: Annotated[int, typer.Option(help="Rows of the generated click log.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Of the click log and of the models.", min=0, max=2**63 - 1)] = 0,
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
    into: Annotated[Path, new_path("The dataset folder to make.")],
    sources: Annotated[
        list[Path] | None, typer.Argument(help="Tables (csv, tsv, parquet), or folders of them.", show_default=False)
    ] = None,
    train_rows: TrainRows = None,
    valid_rows: ValidRows = None,
    test_rows: TestRows = None,
    schema: SchemaFile = None,
    source: Annotated[str | None, typer.Option(help="A known set: criteo, criteo-auto, movielens-1m or avazu.")] = None,
    label: LabelName = None,
    positive: Positive = None,
    separator: Separator = None,
    encoding: Encoding = None,
    on_error: OnBadRow = "raise",
    sets: Sets = None,
    engine: Engine = "local",
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
        refuse(f"--source {source}, which says so itself", **given, **divided)
        from crossrank.data.sources import open_source

        table, meaning, usual = open_source(source, sources or [], on_error=on_error)
        split = split if "split" in values else usual
    else:
        table = open_rows(sources, divided, separator=separator, encoding=encoding, on_error=on_error)
        meaning = schema_of(table, schema, label, positive, split=split)
    split = say_split(split, table, meaning)
    options: dict[str, Any] = {"on_error": on_error, "overwrite": overwrite, "engine": engine}
    dataset = prepare_dataset(table, meaning, into, split=split, **options)
    rows = dataset.num_rows
    say_skipped(table)
    _say_encodings(meaning, dataset.schema)
    for name, share in zip(SPLITS, split.fractions, strict=False):
        if share and name not in rows and not split.may_lack_test:
            say(f"warning: {sum(rows.values()):,} rows are so few that none is a {name} row")
    say(f"dataset: {into} ({', '.join(f'{name} {count:,}' for name, count in rows.items())} rows)")


@app.command(epilog="Example: crossrank train clicks.csv --into runs/first --set model.cross.num_layers=3 --seeds 5")
def train(
    into: Annotated[Path, new_path("The run folder to make.")],
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
    label: LabelName = None,
    positive: Positive = None,
    separator: Separator = None,
    encoding: Encoding = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same weights.")] = 0,
    seeds: Annotated[int, typer.Option(help="Train this many models; report mean and deviation.", min=1)] = 1,
    ensemble: Annotated[
        int | None, typer.Option(help="Train this many seeds as one model that answers their mean.", min=1)
    ] = None,
    tune: Annotated[
        float | None, typer.Option(help="Look this many minutes for settings on the validation rows first.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted training.")] = False,
    workers: Annotated[int | None, typer.Option(help="Processes that train one model, with TorchRec.", min=1)] = None,
    engine: Engine = "local",
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
    sets += ["training.distributed=true"] if engine == "ray" else []
    settings = override(load_toml(config) if config else {}, sets)
    split = Config.parse(settings).split  # before anything is read
    if workers is not None or Config.parse(settings).training.distributed:
        refuse("--workers or training.distributed", seeds=seeds > 1 or None, tune=tune, profile=profile or None)
        if workers is not None and engine == "local":
            train_with_workers(workers, into=into, how=lambda: _how_to_resume(into))
            return
        let_the_first_talk()
    divided = {"train": train_rows, "valid": valid_rows, "test": test_rows}
    meaning, opened = None, open_rows(data, divided, separator=separator, encoding=encoding)
    if isinstance(opened, EncodedDataset):
        given = {
            "schema": schema, "label": label, "positive": positive, "separator": separator, "encoding": encoding
        }  # fmt: skip
        refuse("a prepared dataset, which has its schema", **given)
    else:
        meaning = schema_of(opened, schema, label, positive, split=split)
        say_split(split, opened, meaning)
    if tune is not None:
        refuse("--resume, which goes on with the settings it had", tune=tune if resume else None)
        from crossrank.experiments.budget import find_settings

        settings = find_settings(opened, minutes=tune, config=settings, schema=meaning, seed=seed, say=say)
    options: dict[str, Any] = {"config": settings, "schema": meaning, "overwrite": overwrite, "track": track}
    if seeds > 1:
        refuse(f"--seeds {seeds}, which trains the seeds 0 to {seeds - 1}", seed=seed or None, profile=profile or None)
        with interruptible(lambda: f"the same command goes on with it: {same_command()}"):
            summary = train_seeds(opened, into=into, seeds=seeds, **options)
        _show_spread(summary, as_json)
        if summary["still_improving"]:
            say(f"note: {summary['still_improving']} of {seeds} seeds {STILL_IMPROVING}")
    else:
        clock = StepClock() if profile else None
        with interruptible(lambda: _how_to_resume(into)):
            train_one = on_ray(workers or 1) if engine == "ray" else partial(train_run, clock=clock)
            run = train_one(opened, into=into, seed=seed, resume=resume, **options)
        if out.quiet:
            return
        _say_filled_in(settings, run.config)
        _say_tries(run.report)
        if meaning is not None:
            _say_encodings(meaning, run.schema)
        if clock:
            _show_profile(clock.rows())
        show_metrics(run.report["test" if "test" in run.report else "valid"], as_json)
        if "test" not in run.report:
            say("note: there are no test rows; these are the validation rows, which also chose the weights")
        if "warning" in run.report["training"]:
            say(f"warning: {run.report['training']['warning']}")
        if run.report["training"]["still_improving"]:
            say(f"note: the training {STILL_IMPROVING}")
        _report(into)
    say(f"run folder: {into}")


def _say_filled_in(given: dict[str, Any], config: dict[str, Any]) -> None:
    """Tell which settings were chosen for the table, because they were left out."""
    from crossrank.config import flatten
    from crossrank.training import Config

    plain = flatten(Config.parse({**given, "split": config["split"]}).to_dict())
    chosen = [f"{key}={value}" for key, value in flatten(config).items() if value != plain[key]]
    if chosen:
        say(f"left out, so chosen for these rows: {', '.join(chosen)}")


def _say_tries(report: dict[str, Any]) -> None:
    """Tell what became of variants and of memories of pairs of columns that were tried."""
    names = [one["what"] for one in report.get("variants", [])]
    for one in report.get("memory", []):
        dropout = f", embedding dropout {one['dropout']}" if "dropout" in one else ""
        names.append(f"memory of {listing([' x '.join(columns) for columns in one['of']], most=3)}{dropout}")
    for name, one in zip(names, [*report.get("variants", []), *report.get("memory", [])], strict=True):
        verdict = "kept" if one["pays"] else "left out"
        say(f"{name}: gained {one['gain']:.4f} ± {one['error']:.4f} on the validation rows, {verdict}")


def _say_encodings(asked: Any, made: Any) -> None:
    """What was decided for the numbers whose encoding was left open."""
    decided: dict[str, list[str]] = {}
    for column, found in zip(asked.numeric, made.numeric, strict=True):
        if column.encoding == "auto":
            decided.setdefault(found.encoding, []).append(column.name)
    for encoding, names in decided.items():
        say(f"numbers encoded as {encoding}: {listing(names, most=8)}")


def _how_to_resume(into: Path) -> str:
    from crossrank.runs.lifecycle import is_interrupted

    if not is_interrupted(into):
        return "there was no evaluation yet to go on from, so nothing is kept"
    return f"go on from the last evaluation with: {same_command('--resume')}"


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
