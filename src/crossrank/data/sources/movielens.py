"""MovieLens-1M: which films people liked, 739,012 rows.

As in the paper, ratings of 1 and 2 become 0, ratings of 4 and 5 become 1, and ratings of 3 are left out.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import polars as pl

from crossrank.data.delimited import OnError
from crossrank.data.frames import FramePart
from crossrank.data.lines import unreadable
from crossrank.data.sources.locate import locate
from crossrank.data.splits import SplitSettings
from crossrank.data.table import Table
from crossrank.errors import DataError
from crossrank.schema import Categorical, Label, Multivalent, Schema

FILES = {
    "ratings.dat": ("user", "movie", "rating", "timestamp"),
    "users.dat": ("user", "gender", "age", "occupation", "zip"),
    "movies.dat": ("movie", "title", "genres"),
}
PUBLISHED_ROWS = {"ratings.dat": 1_000_209, "users.dat": 6_040, "movies.dat": 3_883}
MOST_BYTES = 1 << 25  # the largest file has 24,594,131
PUBLISHER = "GroupLens offers it on its site as ml-1m.zip (MovieLens 1M Dataset); give the zip or the unpacked folder."

SPLIT = SplitSettings(method="random", fractions=(0.8, 0.1, 0.1))  # the paper's


def open_set(path: Path | str, *, on_error: OnError = "raise") -> Table:
    """The ratings with what is known of user and film, from the zip or the unpacked folder.

    The columns are ``liked``, ``user``, ``movie``, ``gender``, ``age``, ``occupation``, ``zip``, ``genres`` and
    ``timestamp`` (seconds, for a split by time).

    Args:
        path: ``ml-1m.zip`` or its folder.
        on_error: taken for the sake of one call for all sources; a set that is not whole is always refused.
    """
    ratings, users, movies = (_read(_content(Path(path), name), name) for name in FILES)
    joined = ratings.join(users, on="user", how="left", maintain_order="left").join(
        movies, on="movie", how="left", maintain_order="left"
    )
    unknown = joined["gender"].null_count() + joined["genres"].null_count()
    odd = joined.filter(~pl.col("rating").is_in(list("12345")))
    if unknown or odd.height:
        raise DataError(
            f"Every rating must be 1 to 5 and of a known user and film; {unknown + odd.height:,} are not.",
            hint=PUBLISHER,
        )
    frame = joined.filter(pl.col("rating") != "3").select(
        pl.col("rating").is_in(["4", "5"]).cast(pl.Int8).alias("liked"),
        *("user", "movie", "gender", "age", "occupation", "zip", "genres"),
        pl.col("timestamp").cast(pl.Int64),
    )
    return Table([FramePart(frame, "MovieLens-1M")])


def schema(*, genres: bool = False) -> Schema:
    """The paper's six features; rows of one user belong together.

    Args:
        genres: take the film's genres as a seventh, multivalent feature.
    """
    names = ("user", "movie", "gender", "age", "occupation", "zip")
    more = [Multivalent(name="genres", separator="|")] if genres else []
    return Schema([*(Categorical(name=name) for name in names), *more], Label(name="liked"), group="user")


def _content(path: Path, name: str) -> bytes:
    try:
        if path.is_file():
            with zipfile.ZipFile(path) as archive:
                with archive.open(f"ml-1m/{name}") as file:
                    content = file.read(MOST_BYTES + 1)
                if len(content) > MOST_BYTES:
                    raise DataError(f"{name} of MovieLens-1M has 24 MB at most; got more.", hint=PUBLISHER)
                return content
        return locate(path, (name, f"ml-1m/{name}"), PUBLISHER).read_bytes()
    except KeyError:
        raise DataError(f"{path} must be ml-1m.zip; it holds no ml-1m/{name}.", hint=PUBLISHER) from None
    except (OSError, zipfile.BadZipFile, EOFError, zlib.error, RuntimeError) as error:  # the last: it is encrypted
        raise unreadable(path, error) from None


def _read(content: bytes, name: str) -> pl.DataFrame:
    """A file of MovieLens: latin-1 text cut at ``::``."""
    lines = pl.Series("line", content.decode("latin-1").removesuffix("\n").split("\n")).str.strip_suffix("\r")
    columns = FILES[name]
    bad = lines.str.count_matches("::", literal=True) != len(columns) - 1
    if bad.any():
        raise DataError(
            f"Line {(bad.arg_max() or 0) + 1:,} of {name} must have {len(columns)} fields cut at '::'; it has not.",
            hint=PUBLISHER,
        )
    if len(lines) != PUBLISHED_ROWS[name]:
        raise DataError(
            f"{name} of MovieLens-1M has {PUBLISHED_ROWS[name]:,} lines; got {len(lines):,}.", hint=PUBLISHER
        )
    fields = lines.str.split_exact("::", len(columns) - 1)
    return fields.struct.rename_fields(columns).struct.unnest()
