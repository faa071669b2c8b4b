"""Files as they were written: what is refused, what is named, and what nothing is left of."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path
from typing import TypedDict

import pytest

from crossrank.errors import DataError, RunError
from crossrank.files import (
    Contents,
    checksum,
    checksum_of,
    read_json,
    read_json_lines,
    signed,
    write_json,
    write_text,
    writing,
)


class Line(TypedDict):
    step: int


def test_json_is_written_as_a_person_would_read_it(tmp_path) -> None:
    write_json(tmp_path / "a.json", {"café": [1]})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "café": [\n    1\n  ]\n}\n'


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        write_text(tmp_path / "taken", "text")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "page.html", "\ud800")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match="No space left"):  # not that there is nothing to remove
        write_text(tmp_path / "page.html", "text")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"must be readable JSON; got: Expecting property name .*\. It is damaged"),
        (b"\xff", r"must be readable JSON; got: 'utf-8' codec"),
        (b'{"step": "one"}', r"is not what it must be: 'step' must be a whole number"),
        (None, r"must be readable JSON; got: it is not a file\."),
    ],
)
def test_a_json_file_that_cannot_be_used_is_named_with_the_reason(tmp_path, content, message) -> None:
    path = tmp_path / "a.json"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(RunError, match=rf"a\.json {message}"):
        read_json(path, Line)


def test_an_absent_json_file_is_told_as_the_system_tells_it(tmp_path) -> None:
    with pytest.raises(
        DataError, match=r"a\.json must be readable JSON; got: No such file or directory\. Look elsewhere"
    ):
        read_json(tmp_path / "a.json", error=DataError, hint="Look elsewhere.")


def test_a_wrong_line_is_named_by_its_number(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_text('{"step": 1}\n{"stop": 2}\n')
    with pytest.raises(RunError, match="line 2"):
        read_json_lines(tmp_path / "a.jsonl", Line)


def test_checksums_are_blake2_of_16_bytes(tmp_path) -> None:
    (tmp_path / "a").write_bytes(b"[7]")
    expected = hashlib.blake2b(b"[7]", digest_size=16).hexdigest()
    assert checksum(tmp_path / "a") == checksum_of([7]) == expected
    assert signed({"rows": 7, "checksum": "of before"}) == signed({"rows": 7})


def test_a_file_that_has_become_a_folder_is_named(tmp_path) -> None:
    (tmp_path / "a").touch()
    contents = Contents(tmp_path, {"a": checksum(tmp_path / "a")}, RunError, hint="Copy it anew.")
    contents.verify()
    (tmp_path / "a").unlink()
    (tmp_path / "a").mkdir()
    with pytest.raises(RunError, match=r"a must be readable; got: it is not a file\. Copy it anew"):
        contents.verify()


def test_a_folder_of_files_is_the_one_that_was_there_in_each_of_them(tmp_path) -> None:
    (tmp_path / "parts").mkdir()
    for name in ("parts/one", "parts/two", "partsmore"):
        (tmp_path / name).write_text(name)
    contents = Contents(tmp_path, dict.fromkeys(["parts/one", "parts/two", "partsmore"], ""), RunError, hint="")
    (tmp_path / "partsmore").write_text("longer than it was")
    assert contents.read("parts", lambda folder: folder.name) == "parts"
    (tmp_path / "parts" / "two").unlink()
    with pytest.raises(
        RunError, match=r"must be the one that was opened; parts/two was replaced since\. Open it again"
    ):
        contents.read("parts", lambda folder: folder.name)


def test_an_error_of_the_system_without_a_number_is_told_in_its_own_words(tmp_path) -> None:
    with pytest.raises(RunError, match=r"must be writable; got: odd\. Check the path"), writing(tmp_path, RunError):
        raise OSError("odd")
    with pytest.raises(DataError, match="as it was"), writing(tmp_path, RunError):
        raise DataError("as it was")
