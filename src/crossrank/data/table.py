"""Rows from files or data frames, read in chunks as often as needed and never all at once."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from crossrank.data.batches import prefetch
from crossrank.data.delimited import DelimitedFile, OnError
from crossrank.data.foreign import check_format
from crossrank.data.forking import use_polars
from crossrank.data.frames import FramePart, StreamPart, frame_of
from crossrank.data.lines import known_encoding, unreadable
from crossrank.data.on_demand import pl
from crossrank.data.packed_texts import Words, texts_of_words
from crossrank.data.parquet import ParquetFile
from crossrank.data.parts import Part, Piece
from crossrank.errors import ConfigError, DataError, SchemaError, did_you_mean, first_line, listing

MOST_COLUMNS = 100_000
CHUNK_ROWS = 65_536  # more would need more memory, fewer more calls for each row
TABS = {"\\t": "\t", "tab": "\t"}
TEXT_SUFFIXES = (".csv", ".tsv", ".tab", ".txt")
SUFFIXES = (".parquet", *(text + packed for text in TEXT_SUFFIXES for packed in ("", ".gz", ".zst")))


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Some rows in the order of the table.

    Attributes:
        frame: the requested columns. From text every column is a string, and nothing between two separators is null.
        words: the columns that come as words, and so not in the frame.
        first_row: the position of the first row in the whole table, counted from 0.
        share_done: an estimate of how much of the table is read, from 0 to 1.
        numbers: each row's number in its source, counted from 1 in the unit.
        part: the position of its part in the table.
    """

    frame: pl.DataFrame
    first_row: int
    share_done: float
    source: str
    unit: str
    numbers: Sequence[int]
    words: Mapping[str, Words] = dataclasses.field(default_factory=dict)
    part: int = 0

    def column(self, name: str) -> pl.Series:
        """A column, whether it came as words or not."""
        return texts_of_words(self.words[name]).alias(name) if name in self.words else self.frame[name]

    def where(self, row: int) -> str:
        """The place of a row of the frame for an error message: ``line 18,205 of train.csv``."""
        return f"{self.unit} {self.numbers[row]:,} of {self.source}"


class Table:
    """Rows of one or several parts with the same columns.

    Attributes:
        columns: the names, in the order of the first part.
        name: what messages call it.
        skipped: with ``on_error="skip"``, how many rows the last full pass left out, by reason.
        part_splits: the split of each part, 0 train, 1 valid, 2 test, where the parts are the splits; else empty.
    """

    def __init__(self, parts: Sequence[Part], *, part_splits: Sequence[int] = ()) -> None:
        self.parts, self.part_splits = tuple(parts), tuple(part_splits)
        self.columns = self.parts[0].columns
        self.name = self.parts[0].name if len(self.parts) == 1 else f"{len(self.parts)} files"
        self.skipped: Counter[str] = Counter()
        if len(self.columns) > MOST_COLUMNS:
            raise SchemaError(
                f"A table may have {MOST_COLUMNS:,} columns; {self.name} has {len(self.columns):,}.",
                hint="Gather those that belong together in one column, as values parted by '|'.",
            )
        for part in self.parts:
            if missing := sorted(set(self.columns) ^ set(part.columns)):
                raise SchemaError(
                    f"All files must have the same columns; {self.parts[0].name} and {part.name} differ in "
                    f"{listing(missing)}.",
                    hint="Read them one by one, or give both the same columns.",
                )

    def head(self, rows: int = 10_000) -> pl.DataFrame:
        """The first rows as one frame."""
        frames: list[pl.DataFrame] = []
        for chunk in self.chunks(rows=rows):
            frames.append(chunk.frame)
            if sum(frame.height for frame in frames) >= rows:
                break
        try:
            return pl.concat(frames, how="vertical_relaxed").head(rows)
        except pl.exceptions.PolarsError as error:
            raise SchemaError(f"All files must have columns of the same types; {first_line(error)}.") from None

    def num_rows(self) -> int:
        """How many rows there are; counted by reading them only where there is no other way."""
        counts = [part.num_rows() for part in self.parts]
        if None in counts:
            return sum(chunk.frame.height for chunk in self.chunks(self.columns[:1]))
        return sum(count for count in counts if count is not None)

    def chunks(
        self, columns: Sequence[str] | None = None, *, rows: int = CHUNK_ROWS, as_words: Sequence[str] = ()
    ) -> Iterator[Chunk]:
        """All rows, in chunks that are the same each time.

        Args:
            columns: only these columns, in this order; all where left out.
            rows: the most rows of a chunk.
            as_words: those of the columns that may come as words, as the columns of plain text do.

        Raises:
            SchemaError: for a column that is not there.
            DataError: for a place that cannot be read, or a table without rows.
        """
        columns = list(dict.fromkeys(self.columns if columns is None else columns))
        self._check_known(columns)
        skipped: Counter[str] = Counter()
        first_row = 0
        for index in range(len(self.parts)):
            for chunk in self.chunks_of(index, columns, first_row, skipped, rows=rows, as_words=as_words):
                yield chunk
                first_row += chunk.frame.height
        self.skipped = skipped
        if not first_row:
            left_out = f"; all {skipped.total():,} were left out" if skipped else ""
            raise DataError(f"{self.name} must have at least one row; got none{left_out}.")

    def chunks_of(
        self,
        index: int,
        columns: Sequence[str],
        first_row: int,
        skipped: Counter[str],
        *,
        rows: int = CHUNK_ROWS,
        as_words: Sequence[str] = (),
    ) -> Iterator[Chunk]:
        """Those of one part, whose first row has that position in the table; what is left out is counted."""
        part = self.parts[index]
        for piece in prefetch(_pieces(part, columns, rows, skipped, as_words), depth=1):
            share = (index + piece.share_done) / len(self.parts)
            yield Chunk(piece.frame, first_row, share, part.name, part.unit, piece.numbers, piece.words, index)
            first_row += piece.frame.height

    def _check_known(self, columns: Sequence[str]) -> None:
        known = set(self.columns)
        for name in columns:
            if name not in known:
                raise SchemaError(
                    f"Column '{name}' is missing from {self.name}; its columns are {listing(self.columns)}.",
                    hint=did_you_mean(name, self.columns),
                )


def _pieces(
    part: Part, columns: Sequence[str], rows: int, skipped: Counter[str], as_words: Sequence[str]
) -> Generator[Piece]:
    if isinstance(part, DelimitedFile):
        yield from part.chunks(columns, rows, skipped, as_words)
    else:
        yield from part.chunks(columns, rows, skipped)


def open_table(
    source: Any,
    *,
    separator: str | None = None,
    header: Sequence[str] | None = None,
    on_error: OnError = "raise",
    encoding: str | None = None,
) -> Table:
    """Open files, a folder, data frames or a source of one's own as a table.

    Args:
        source: a path or several (csv, tsv, txt, also .gz and .zst; parquet), a folder of such files, a polars or
            pandas data frame, an Arrow table, a mapping from column names to values, an iterator of such, which is
            read once and kept on disk until the table goes, any :class:`Part`, or a table, which is returned as it is.
        separator: what stands between two fields of a text file, such as ";", "tab" or "::"; guessed where left out.
        header: the column names, for text files without a header line.
        on_error: ``"raise"``, or ``"skip"`` to leave out and count lines that cannot be read.
        encoding: of text files: utf-8, latin-1, cp1252, utf-16, …; where left out UTF-8, or UTF-16 by its mark.

    Raises:
        DataError: for a source that cannot be read.
        SchemaError: for columns that have one name or differ between files.

    Example:
        >>> table = open_table({"click": [0, 1], "country": ["de", None]})
        >>> [chunk.frame.height for chunk in table.chunks(["country"])]
        [2]
    """
    use_polars()
    if on_error not in get_args(OnError):
        raise ConfigError(f"on_error must be 'raise' or 'skip'; got {on_error!r}.")
    separator, encoding = TABS.get(separator or "", separator), known_encoding(encoding)
    if separator is not None and not (separator.isascii() and separator and not set(separator) & set('\0\n\r"')):
        raise ConfigError(
            f"A separator must be one or a few ASCII characters; got {separator!r}.", hint="Usual is ',' or a tab."
        )
    if isinstance(source, Table):
        return source
    if isinstance(source, str | Path):
        return _open_files([Path(source)], separator, header, on_error, encoding)
    if isinstance(source, Sequence) and source and all(isinstance(item, str | Path) for item in source):
        return _open_files([Path(item) for item in source], separator, header, on_error, encoding)
    if isinstance(source, Part):
        return Table([source])
    return Table([StreamPart(source) if isinstance(source, Iterator) else FramePart(frame_of(source))])


def open_splits(*, train: Any, valid: Any = None, test: Any = None, **table_options: Any) -> Table:
    """Open tables that are divided already as one table, whose rows keep their splits.

    Args:
        train: what :func:`open_table` opens: the only rows that an encoder learns from.
        valid: the rows that choose the weights; left out, they are drawn from the training rows.
        test: the rows that a finished run is measured on; may be left out.
        **table_options: more for :func:`open_table`.

    Example:
        >>> table = open_splits(train={"x": [1, 2]}, test={"x": [3]})
        >>> table.num_rows(), table.part_splits
        (3, (0, 2))
    """
    opened = [None if one is None else open_table(one, **table_options) for one in (train, valid, test)]
    parts = [(part, split) for split, table in enumerate(opened) if table is not None for part in table.parts]
    return Table([part for part, _ in parts], part_splits=[split for _, split in parts])


def _open_files(
    paths: Sequence[Path], separator: str | None, header: Sequence[str] | None, on_error: OnError, encoding: str | None
) -> Table:
    files = [file for path in paths for file in (_in_folder(path) if path.is_dir() else [path])]
    for file in files:
        check_format(file)
    parquet = [_is_parquet(file) for file in files]
    if len(set(parquet)) > 1:
        names = listing((files[parquet.index(True)].name, files[parquet.index(False)].name))
        raise DataError(f"The files of a table must be all text or all parquet; got {names}.")
    if parquet[0]:
        return Table([ParquetFile(file) for file in files])
    return Table([DelimitedFile(file, separator, header, on_error, encoding) for file in files])


def _in_folder(folder: Path) -> list[Path]:
    try:
        inside = sorted(item for item in folder.iterdir() if item.name[0] not in "._")
        deeper = [item for item in inside if item.is_dir() and any(map(_is_table, item.rglob("*")))]
    except OSError as error:
        raise unreadable(folder, error) from None
    files = [item for item in inside if item.is_file()]
    found = [file for file in files if _is_table(file)]
    if deeper:
        raise DataError(
            f"The tables in {folder} must stand side by side; got {len(found)} there, and more in its subfolders "
            f"{listing(item.name for item in deeper)}, which would not be read.",
            hint="Move them into one folder, or move those away that do not belong to the table.",
        )
    if not found:
        raise DataError(
            f"The folder {folder} must hold tables ({', '.join((*TEXT_SUFFIXES, '.parquet'))}, also .gz and .zst); got "
            f"{listing(file.name for file in files)}."
        )
    return found


def _is_table(path: Path) -> bool:
    return path.name.endswith(SUFFIXES) and path.is_file()


def _is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return path.suffix == ".parquet" or file.read(4) == b"PAR1"
    except OSError as error:
        raise unreadable(path, error) from None
