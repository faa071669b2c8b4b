"""Commands that run many trainings: the paper's experiments, and the search for good settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from crossrank.cli.app import Engine, Json, app, interruptible, models_from, new_path, out, same_command, say, table_of
from crossrank.cli.scoring import refuse
from crossrank.errors import ConfigError


@app.command(epilog="Example: crossrank paper polynomials --into docs/paper")
def paper(
    name: Annotated[str, typer.Argument(help="An experiment, `list`, or `all`.")],
    into: Annotated[Path, new_path("The folder of the pages.")] = Path("docs/paper"),
    quick: Annotated[bool, typer.Option(help="A reduced version, to see that it works.")] = False,
    data: Annotated[list[str] | None, typer.Option(help="NAME=PATH of a set, such as movielens-1m=ml-1m.zip.")] = None,
    work: Annotated[Path | None, typer.Option(help="Where datasets and runs are kept.")] = None,
    search: Annotated[bool, typer.Option(help="Search the settings anew (movielens).")] = False,
    jobs: Annotated[int | None, typer.Option(help="Trainings at a time; left out, one for each core.", min=1)] = None,
) -> None:
    """Run an experiment of the paper and write our numbers beside its own."""
    from crossrank.experiments.paper import EXPERIMENTS, list_experiments, run_all, run_experiment
    from crossrank.reports import write_report

    places = _places(data or [])
    if name == "list":
        table = table_of("experiment", "about", "time on two cores", title="", text=("about", "time on two cores"))
        for experiment in list_experiments():
            needs = f" (needs {experiment.needs})" if experiment.needs else ""
            needs += f" (takes {', '.join(experiment.takes)})" if experiment.takes else ""
            table.add_row(experiment.name, experiment.about + needs, experiment.cost)
        out.print(table)
    elif name == "all":
        run_all(into, quick=quick, data=places, work=work, say=say)
    else:
        found = EXPERIMENTS[name].data(places) if name in EXPERIMENTS else None
        options = {"data": found, "work": work, "search": search or None, "jobs": jobs}
        given = {key: value for key, value in options.items() if value is not None}
        page = run_experiment(name, into, quick=quick, **given)
        if page.runs:
            say(f"report: {write_report(page.runs, page.runs[0].parents[1] / 'report.html')}")
        say(f"page: {into / name}.md")


@app.command(epilog="Example: crossrank tune data/clicks --into searches/first --space dcn-v2 --trials 48")
def tune(
    dataset: Annotated[Path, typer.Argument(help="An encoded dataset.")],
    into: Annotated[Path, new_path("The folder of the search; an unfinished one is gone on with.")],
    space: Annotated[
        str,
        typer.Option(
            help="A TOML file, or a model's name for the paper's ranges, made for Criteo's size.",
            autocompletion=models_from,
        ),
    ] = "dcn-v2",
    trials: Annotated[int, typer.Option(help="Trainings in all stages together.")] = 48,
    stages: Annotated[int, typer.Option(help="Coarse to fine; 1 for a single search.")] = 2,
    rates: Annotated[int, typer.Option(help="Learning rates for each setting; on a GPU they train as one.")] = 1,
    seeds: Annotated[int, typer.Option(help="Final trainings of the winner, measured on the test rows.")] = 5,
    seed: Annotated[int, typer.Option(help="Of the search.", min=0, max=2**32 - 1)] = 0,
    jobs: Annotated[int | None, typer.Option(help="Settings at a time; left out, one for each core.")] = None,
    engine: Engine = "local",
    as_json: Json = False,
) -> None:
    """Search for good settings on the validation rows, coarse to fine, and train the winner with several seeds."""
    from crossrank.data import EncodedDataset
    from crossrank.evaluation.metrics import CRITERIA
    from crossrank.experiments.leaderboard import leaderboard_table
    from crossrank.experiments.space import default_space
    from crossrank.experiments.tune import tune as search

    if engine == "ray":
        refuse("--engine ray, which tries as many at a time as the cluster has processors", jobs=jobs)
    rows = EncodedDataset.open(dataset)
    where = space if Path(space).suffix == ".toml" else default_space(space)
    sizes = {"trials": trials, "stages": stages, "rates": rates, "seeds": seeds}
    with interruptible(lambda: f"the same command goes on with it: {same_command()}"):
        found = search(rows, into, space=where, seed=seed, jobs=jobs, engine=engine, say=say, **sizes)
    if as_json:
        print(json.dumps({"winner": found.winner, "summary": found.summary}))
        return
    criterion = CRITERIA[rows.schema.label.kind]
    board = leaderboard_table(found.leaderboard[:10], criterion=criterion)
    out.print(board, highlight=False, soft_wrap=True)
    spread = found.summary["test"][criterion]
    out.print(f"winner, test {criterion} over {seeds} seeds: {spread['mean']:.5f} ± {spread['deviation'] or 0:.5f}")
    say(f"search folder: {into}")


def _places(words: list[str]) -> dict[str, Path]:
    places = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals:
            raise ConfigError(f"--data must read NAME=PATH; got '{word}'.", hint="Example: movielens-1m=ml-1m.zip")
        places[name] = Path(path)
    return places
