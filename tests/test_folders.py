"""Folders that are made: one maker at a time, nothing lost between two renames, nothing of others touched."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crossrank.errors import RunError
from crossrank.files import writing
from crossrank.folders import LOCK, MARK, delete, fresh_partial, locked, making, partial_of, publish, recover

MAKE = """
import os, signal, sys
from pathlib import Path
from crossrank.errors import RunError
from crossrank.folders import making, publish
target = Path(sys.argv[1])
rename, left = Path.rename, [int(sys.argv[2])]
def counted(self, other):
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return rename(self, other)
Path.rename = counted
with making(target, RunError) as folder:
    (folder / "which").write_text("new")
    publish(folder, target)
"""


def made(target: Path, content: str) -> Path:
    with making(target, RunError) as folder:
        (folder / "which").write_text(content)
        publish(folder, target)
    return target


def killed_at_rename(target: Path, number: int) -> None:
    ended = subprocess.run([sys.executable, "-c", MAKE, str(target), str(number)], check=False)
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.parametrize("reader", [True, False])
@pytest.mark.parametrize("number", [0, 1])
def test_a_kill_between_two_renames_loses_nothing(tmp_path, number, reader) -> None:
    target = made(tmp_path / "run", "old")
    killed_at_rename(target, number)
    if reader:
        recover(target)
        assert (target / "which").read_text() == "old" and not (target / MARK).exists()
    assert (made(target, "newer") / "which").read_text() == "newer"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_a_killed_command_left_is_removed_by_the_next_one_beside_it(tmp_path) -> None:
    killed_at_rename(tmp_path / "one", 0)
    assert partial_of(tmp_path / "one").is_dir()
    made(tmp_path / "two", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["two"]


def test_what_a_killed_command_left_in_a_folder_is_removed_by_the_next_one_about_it(tmp_path) -> None:
    made(tmp_path / "run", "old")
    killed_at_rename(tmp_path / "run" / "page", 0)
    with locked(tmp_path / "run", RunError):
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["which"]


def test_a_name_is_kept_by_one_command_at_a_time(tmp_path) -> None:
    with making(tmp_path / "run", RunError) as folder:
        with (
            pytest.raises(RunError, match=f"one command at a time; process {os.getpid()} on .* is making it"),
            locked(tmp_path / "run", RunError),
        ):
            pass
        made(tmp_path / "other", "new")
        assert folder.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@pytest.mark.parametrize("name", ["run.partial", ".run.old", ".run.crossrank-old"])
def test_what_others_made_stays(tmp_path, name) -> None:
    (tmp_path / name / "thesis").mkdir(parents=True)
    if name == "run.partial":
        with pytest.raises(RunError, match="something that is not an unfinished one stands there"):
            made(tmp_path / "run", "new")
    else:
        made(tmp_path / "run", "new")
    assert (tmp_path / name / "thesis").is_dir()


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path) -> None:
    made(tmp_path / "first", "old")
    (tmp_path / "run").symlink_to("first")
    made(tmp_path / "run", "new")
    assert (tmp_path / "first" / "which").read_text() == "old" and not (tmp_path / "run").is_symlink()
    assert sorted(path.name for path in (tmp_path / "first").iterdir()) == ["which"]


def test_a_rename_that_fails_leaves_the_old_folder(tmp_path, monkeypatch) -> None:
    target, rename = made(tmp_path / "run", "old"), Path.rename

    def failing(self, other):
        if self == partial_of(target):
            raise OSError(errno.EACCES, "Permission denied")
        return rename(self, other)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(RunError, match="must be writable; got: Permission denied"):
        made(target, "new")
    assert (target / "which").read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_could_not_be_settled_is_settled_by_whoever_looks_next(tmp_path, monkeypatch) -> None:
    unlink = Path.unlink

    def failing(self, **how):
        if self == tmp_path / "run" / MARK:
            raise OSError(errno.EACCES, "Permission denied")
        unlink(self, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", failing)
        with pytest.raises(RunError, match="Permission denied"):
            made(tmp_path / "run", "new")
    assert (tmp_path / "run" / MARK).is_file()
    recover(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["which"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_scaffold_that_could_not_be_removed_is_removed_by_whoever_looks_next(tmp_path, monkeypatch) -> None:
    def failing(path):
        raise OSError(errno.EACCES, "Permission denied")

    with pytest.raises(RunError, match="Permission denied"), making(tmp_path / "run", RunError) as folder:
        (folder / "members").mkdir()
        (folder / "plan.json").touch()
        with monkeypatch.context() as patch:
            patch.setattr("crossrank.folders.shutil.rmtree", failing)
            publish(folder, tmp_path / "run")
    recover(tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"] and not list((tmp_path / "run").iterdir())


def test_what_libraries_say_of_a_full_disk_is_understood(tmp_path) -> None:
    with pytest.raises(RunError, match=r"No space left on device\. The disk is full"), writing(tmp_path, RunError):
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(ZeroDivisionError), writing(tmp_path, RunError):
        raise ZeroDivisionError("division by zero")


def test_an_emptied_folder_that_could_not_be_removed_is_removed_by_whoever_looks_next(tmp_path, monkeypatch) -> None:
    def failing(self):
        raise OSError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rmdir", failing)
        with making(tmp_path / "run", RunError):
            pass
    assert [path.name for path in partial_of(tmp_path / "run").iterdir()] == []
    recover(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_may_lie_in_folders_that_are_not_there_yet_and_hold_a_link(tmp_path) -> None:
    with making(tmp_path / "a" / "b" / "run", RunError) as folder:
        (folder / "link").symlink_to("nowhere")
        publish(folder, tmp_path / "a" / "b" / "run")
    assert (tmp_path / "a" / "b" / "run" / "link").is_symlink()
    delete(tmp_path / "a" / "b" / "run" / "link")
    assert not list((tmp_path / "a" / "b" / "run").iterdir())


@pytest.mark.parametrize("kept", ["checkpoint/position.json", "members/one"])
def test_what_can_be_gone_on_with_is_kept_until_somebody_starts_anew(tmp_path, kept) -> None:
    def begun() -> Path:
        folder = fresh_partial(tmp_path / "run", RunError)
        (folder / kept).parent.mkdir()
        (folder / kept).touch()
        return folder / kept

    with locked(tmp_path / "run", RunError):
        file = begun()
    with locked(tmp_path / "run", RunError):
        assert file.is_file()
        assert [path.name for path in fresh_partial(tmp_path / "run", RunError).iterdir()] == [MARK]
    assert {path.name for path in tmp_path.iterdir()} == {"run.partial", f".run{LOCK}"}


def test_where_the_system_has_no_locks_nobody_is_kept_out(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("crossrank.folders.fcntl", None)
    with locked(tmp_path / "run", RunError):
        assert (made(tmp_path / "run", "new") / "which").read_text() == "new"
        recover(tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_where_a_disk_has_no_locks_nobody_is_kept_out_and_nothing_is_taken_for_left_behind(
    tmp_path, monkeypatch
) -> None:
    def failing(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    killed_at_rename(tmp_path / "other", 0)
    monkeypatch.setattr(fcntl, "flock", failing)
    with locked(tmp_path / "run", RunError):
        made(tmp_path / "run", "new")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "other.partial", f".other{LOCK}"}


def test_a_lock_that_was_taken_away_while_it_was_waited_for_is_taken_anew(tmp_path, monkeypatch) -> None:
    flock, place = fcntl.flock, tmp_path / f".run{LOCK}"

    def slow(lock, how):
        monkeypatch.undo()
        place.unlink()  # whoever held it is done
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    with locked(tmp_path / "run", RunError):
        assert place.read_text().startswith(f"process {os.getpid()} on ")
        with pytest.raises(RunError, match="one command at a time"), locked(tmp_path / "run", RunError):
            pass


def test_a_command_that_has_not_said_yet_who_it_is_is_another_one(tmp_path) -> None:
    with (tmp_path / f".run{LOCK}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with (
            pytest.raises(RunError, match="at a time; another command is making it"),
            locked(tmp_path / "run", RunError),
        ):
            pass
