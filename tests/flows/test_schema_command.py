"""`crossrank schema`: what a person sees of a table's columns."""

from __future__ import annotations

import json
from datetime import date, timedelta

import polars as pl
import pytest
from commands import SMALL, crossrank

from crossrank.schema import Schema


@pytest.fixture
def messy(tmp_path):
    """A table as people have them."""
    lines = ["when;price;job;bought"]
    for i in range(200):
        day = date(2026, 1, 1) + timedelta(days=i % 90)
        job = ("?", "Bäcker", "clerk")[i % 3]
        lines.append(f"{day:%d/%m/%Y};{1000 + i:,}.50 £;{job};{'yes' if i % 4 else 'no'}".replace(",", "'"))
    (tmp_path / "messy.csv").write_text("\n".join(lines) + "\n", encoding="cp1252")
    return tmp_path


def test_a_draft_is_shown_with_reasons_and_examples_and_written(messy):
    words = ("schema", "messy.csv", "--label", "bought", "--encoding", "cp1252")
    out, talk = crossrank(*words, "--into", "schema.json", cwd=messy)
    assert "messy.csv: 4 columns" in out
    for name, kind, *others in (
        ("when", "date", "format %d/%m/%Y; weekday, age", "01/01/2026"),
        ("price", "numeric", "numbers from 1,000.5 to 1,199.5; decimal mark '.'", "1'000.50 £"),
        ("job", "categorical", "2 different texts; missing: '?'", "Bäcker"),
        ("bought", "label", "binary: yes counts as 1", "no, yes"),
    ):
        (row,) = [line for line in out.splitlines() if line.startswith(f"│ {name} ")]
        assert kind in row
        assert all(word in out for text in others for word in text.split())  # cells may be folded
    assert "crossrank schema messy.csv --schema schema.json" in talk
    out, _ = crossrank(*words, "--json", cwd=messy)
    assert Schema.from_dict(json.loads(out)) == Schema.load(messy / "schema.json")
    _, talk = crossrank(*words, "--into", "schema.json", cwd=messy, code=2)
    assert "schema.json must not exist yet" in talk


def test_a_schema_is_checked_against_a_table(messy):
    crossrank("schema", "messy.csv", "--label", "bought", "--encoding", "cp1252", "--into", "schema.json", cwd=messy)
    check = ("schema", "messy.csv", "--encoding", "cp1252", "--schema", "schema.json")
    out, talk = crossrank(*check, cwd=messy)
    assert "schema.json fits messy.csv" in talk and "│ no " not in out
    text = (messy / "messy.csv").read_text(encoding="cp1252").replace("01/01/2026", "soon").replace("job", "jobs")
    (messy / "messy.csv").write_text(text, encoding="cp1252")
    out, talk = crossrank(*check, cwd=messy, code=1)
    assert "'job': not in the table. Did you mean 'jobs'?" in talk
    assert "'when': 3 of 200 cells cannot be read, the first 'soon' in line 2 of messy.csv" in talk
    assert "not used" in out
    out, _ = crossrank(*check, "--json", cwd=messy, code=1)
    assert json.loads(out)["fits"] is False and set(json.loads(out)["misfits"]) == {"job", "when"}
    _, talk = crossrank(*check, "--label", "bought", cwd=messy, code=2)
    assert "--label does not go with --schema" in talk


def test_columns_of_the_wrong_type_are_told_all_at_once(messy):
    pl.DataFrame({"a": [[1], [2]], "b": [[1], [2]], "click": [0, 1]}).write_parquet(messy / "a.parquet")
    features = [{"kind": "numeric", "name": name} for name in "ab"]
    (messy / "s.json").write_text(json.dumps({"label": {"name": "click"}, "features": features}))
    _, talk = crossrank("schema", "a.parquet", "--schema", "s.json", cwd=messy, code=1)
    assert talk.count("must hold numbers; got List") == 2


def test_a_messy_table_goes_all_the_way(messy):
    how = ("--encoding", "cp1252", "--separator", ";")
    crossrank("train", "messy.csv", "--label", "bought", *how, "--into", "run", *SMALL, cwd=messy)
    crossrank("evaluate", "run", "messy.csv", *how, cwd=messy)
    crossrank("predict", "run", "messy.csv", *how, "--into", "scored.csv", cwd=messy)
    crossrank("data", "describe", "messy.csv", "--label", "bought", *how, cwd=messy)
    crossrank("prepare", "messy.csv", "--label", "bought", *how, "--into", "dataset", cwd=messy)
    crossrank("report", "run", "--data", "messy.csv", *how, "--into", "page.html", cwd=messy)
    out, _ = crossrank("explain", "run", "--features", "--json", cwd=messy)
    assert {one["feature"] for one in json.loads(out)} == {"when.weekday", "when.age", "price", "job"}
    row = json.dumps({"when": "05/01/2026", "price": "1'000.50 £", "job": "?"})
    out, _ = crossrank("explain", "run", "--row", row, "--json", cwd=messy)
    assert {one["feature"]: one["value"] for one in json.loads(out)["alone"]}["when.weekday"] == "Mon"
