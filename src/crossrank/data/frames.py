"""Data frames as parts of a table: one in memory, or a stream of them that can be read only once."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from crossrank.data.on_demand import pl
from crossrank.data.parts import Piece, check_names
from crossrank.errors import DataError, SchemaError, first_line, listing
from crossrank.files import writing


class FramePart:
    """A data frame in memory."""

    unit = "row"

    def __init__(self, frame: pl.DataFrame, name: str = "data frame") -> None:
        self.frame, self.name, self.columns = frame, name, tuple(frame.columns)

    def num_rows(self) -> int | None:
        return self.frame.height

    def chunks(self, columns: Sequence[str], rows: int, skipped: Counter[str]) -> Iterator[Piece]:
        selected = self.frame.select(columns)
        for start in range(0, selected.height, rows):
            frame = selected.slice(start, rows)
            stop = start + frame.height
            yield Piece(frame, range(start + 1, stop + 1), stop / selected.height)


class StreamPart:
    """Data frames that can be had only once, one after the other; what was read is kept on disk for later passes.

    Args:
        frames: the data frames, all with the same columns. The first is taken at once, the others by other threads.
    """

    name, unit = "stream", "row"

    def __init__(self, frames: Iterator[Any]) -> None:
        self._frames, self._lock = frames, threading.Lock()
        self._sizes: list[int] = []  # of the frames on disk
        self._state: Literal["open", "ended", "broken"] = "open"
        self.folder = Path(tempfile.mkdtemp(prefix="crossrank-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.columns: tuple[str, ...] = ()
        if self._frame(0) is None:
            raise DataError("A stream must have at least one data frame; got none.")

    def num_rows(self) -> int | None:
        return sum(self._sizes) if self._state == "ended" else None

    def chunks(self, columns: Sequence[str], rows: int, skipped: Counter[str]) -> Iterator[Piece]:
        first_row = 0
        for number in itertools.count():
            if (frame := self._frame(number)) is None:
                return
            share = (number + 1) / len(self._sizes) if self._state == "ended" else 0.0
            for piece in FramePart(frame).chunks(columns, rows, skipped):
                yield Piece(piece.frame, [first_row + place for place in piece.numbers], share)
            first_row += frame.height

    def _frame(self, number: int) -> pl.DataFrame | None:
        """A frame from the disk, or the next one from the stream; None after the last."""
        with self._lock:
            path, size = self.folder / str(number), sum(self._sizes)
            if number < len(self._sizes):
                return pl.read_ipc(path)
            if self._state == "broken":
                raise DataError(
                    f"A stream must go on to its end; it broke off after {size:,} rows.", hint="Open it anew."
                )
            state, self._state = self._state, "broken"  # unless the frame arrives whole
            given = next(self._frames, self) if state == "open" else self
            if given is self:
                self._state = "ended"
                return None
            frame = frame_of(given)
            self.columns = self.columns or tuple(frame.columns)
            if set(frame.columns) != set(self.columns):
                raise SchemaError(
                    f"All frames of a stream must have the columns {listing(self.columns)}; got "
                    f"{listing(frame.columns)} after {size:,} rows."
                )
            with writing(self.folder, DataError):
                frame.write_ipc(path)
            self._sizes.append(frame.height)
            self._state = "open"
            return frame


def frame_of(source: Any) -> pl.DataFrame:
    if isinstance(source, pl.DataFrame):
        return source
    if type(source).__module__.partition(".")[0] == "pandas" and hasattr(source, "columns"):
        columns = [(str(name), _pandas_values(source.iloc[:, place])) for place, name in enumerate(source.columns)]
    elif isinstance(source, Mapping):
        columns = [(str(name), values) for name, values in source.items()]
    elif hasattr(source, "__arrow_c_stream__"):
        return pl.DataFrame(source)
    else:
        raise DataError(
            "A table must be a path, several paths, a data frame, an Arrow table, a mapping from names to values, an "
            f"iterator of such or a Part; got {type(source).__name__}."
        )
    check_names([name for name, _ in columns], "the data frame")
    try:
        return pl.DataFrame([_series(name, values) for name, values in columns])
    except pl.exceptions.ShapeError as error:
        raise DataError(f"All columns must have one length; {first_line(error)}.") from None


def _series(name: str, values: Any) -> pl.Series:
    try:
        if isinstance(values, list | tuple) and any(isinstance(value, float) for value in values):
            return pl.Series(name, values, dtype=pl.Float64)  # whole numbers among them are welcome
        series = pl.Series(name, values)
        if isinstance(values, str) or series.dtype == pl.Object:
            raise TypeError(f"got {type(values).__name__}")
        return series
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
        hint = "Turn the values into one type first, such as text."
        raise DataError(f"Column '{name}' must hold values of one type; {first_line(error)}.", hint=hint) from None


def _pandas_values(column: Any) -> Any:
    """Plain numbers as they are, everything else as a list with None for what pandas calls missing."""
    if getattr(column.dtype, "kind", "O") in "biuf" and hasattr(column.dtype, "byteorder"):
        return column.to_numpy()
    return column.astype(object).where(column.notna(), None).tolist()
