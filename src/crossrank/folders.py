"""Folders that are complete or absent, made by one command at a time, without touching what others made.

A folder is made under another name, ``NAME.partial``, and marked as ours by a file in it. The mark goes last when the
folder is removed, and when it has its name. While a command is at work, it holds a lock on the name: a file that says
who it is, and that the system lets go of when the command ends, however that comes. A lock that nobody holds tells that
a command was killed; whoever makes something in the same place next puts that to an end.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from crossrank.errors import CrossRankError
from crossrank.files import temporary_of, writing

try:
    import fcntl
except ImportError:  # where the system has no such locks, nobody is kept out
    fcntl = None  # type: ignore[assignment]

MARK = ".crossrank"
LOCK = ".crossrank-lock"
PLAN = "plan.json"  # what an unfinished training was asked for
CHECKPOINT = "checkpoint"
MEMBERS = "members"
SCAFFOLD = (MEMBERS, "dataset", PLAN)  # of a training, removed when its folder has its name


def partial_of(target: Path) -> Path:
    """What a folder is called until it is complete."""
    return target.with_name(f"{target.name}.partial")


def is_marked(folder: Path) -> bool:
    """Whether a folder is unfinished, or about to be removed, and ours."""
    return not folder.is_symlink() and (folder / MARK).is_file()


def is_left(folder: Path) -> bool:
    """Whether it is such a folder, or what a failure left of one: an empty folder."""
    return is_marked(folder) or (folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()))


def has_checkpoint(folder: Path) -> bool:
    """Whether an unfinished training can be gone on with."""
    return (folder / CHECKPOINT / "position.json").is_file() or (folder / MEMBERS).is_dir()


def check_replaceable(
    target: Path, kind: str, error: type[CrossRankError], *, overwrite: bool, is_one: Callable[[Path], bool]
) -> None:
    """Refuse to put something in the place of what is not of its kind, or is not to be overwritten."""
    if target.exists() and not overwrite:
        hint = "Choose another name, or pass --overwrite to replace it."
        raise error(f"The {kind} {target} must not exist yet; it does.", hint=hint)
    if target.exists() and not is_one(target):
        raise error(f"{target} is not a {kind}, so it will not be replaced.", hint="Choose another name.")


@contextlib.contextmanager
def making(target: Path, error: type[CrossRankError]) -> Iterator[Path]:
    """A folder to make something in, locked, and gone in the end; :func:`publish` gives it the target's name."""
    with writing(target, error), locked(target, error):
        partial = fresh_partial(target, error)
        try:
            yield partial
        finally:
            remove(partial)


@contextlib.contextmanager
def locked(target: Path, error: type[CrossRankError]) -> Iterator[None]:
    """Keep a name to oneself, and put to an end what killed commands left beside it and in it.

    Raises:
        CrossRankError: of the given kind, where another command is at work there.
    """
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    place = _lock_of(target)
    try:
        lock = _take(place)
    except BlockingIOError:
        raise error(
            f"{target} must be made by one command at a time; {_holder(place)} is making it.",
            hint="Wait for it to end, or choose another name.",
        ) from None
    try:
        if lock is not None:
            started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            who = f"process {os.getpid()} on {socket.gethostname()}, since {started}: {' '.join(sys.argv)}"
            os.truncate(lock, 0)
            os.write(lock, who.encode(errors="replace")[:1000])
        for other in (*target.parent.glob(f".*{LOCK}"), *target.glob(f".*{LOCK}")):
            recover(other.with_name(other.name[1 : -len(LOCK)]))
        settle(target)
        yield
    finally:
        _let_go(target, lock)


def fresh_partial(target: Path, error: type[CrossRankError]) -> Path:
    """An empty, marked folder to fill and then to :func:`publish`, under a lock; an unfinished one is removed."""
    partial = partial_of(target)
    if is_marked(partial):
        remove(partial)
    if partial.is_symlink() or (partial.exists() and not (partial.is_dir() and not any(partial.iterdir()))):
        raise error(
            f"{partial} is needed to make {target.name}; something that is not an unfinished one stands there.",
            hint="Move it away, or choose another name.",
        )
    partial.mkdir(exist_ok=True)
    (partial / MARK).touch()
    return partial


def publish(partial: Path, target: Path) -> None:
    """Give a finished folder its name, under a lock; an older folder of that name goes only once the new one stands."""
    for file in (*partial.rglob("*"), partial):
        if not file.is_symlink():
            _sync(file)
    old = _old_of(target)
    if target.is_symlink():
        target.unlink()
    elif target.exists():
        (target / MARK).touch()
        target.rename(old)
    try:
        partial.rename(target)
    except OSError:
        settle(target)
        raise
    settle(target)
    _sync(target.parent)


def settle(target: Path) -> None:
    """Bring to an end what was done about a name: nothing is left of it but the target and what can be gone on with."""
    partial, old = partial_of(target), _old_of(target)
    if is_marked(old) and not target.exists():
        old.rename(target)
    if is_marked(target):
        for name in SCAFFOLD if (target / PLAN).is_file() else ():
            delete(target / name)
        (target / MARK).unlink()
    if is_left(old):
        remove(old)
    if is_left(partial) and not has_checkpoint(partial):
        remove(partial)


def recover(target: Path) -> None:
    """Before a look at a name: settle what a command left that was killed; its lock is there, and nobody holds it."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError):  # it is not there, or held, or somebody else's
        lock = _take(_lock_of(target.absolute()), new=False)
        try:
            settle(target)
            temporary_of(target).unlink(missing_ok=True)
        finally:
            _let_go(target, lock)


def remove(folder: Path) -> None:
    """Remove a folder that is ours, its mark last: what a kill or a failure leaves of it is marked, or empty."""
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            if entry.name != MARK:
                delete(entry)
        if [entry.name for entry in folder.iterdir()] == [MARK]:
            (folder / MARK).unlink()
        folder.rmdir()


def delete(path: Path) -> None:
    """Remove a file, a link or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _old_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.crossrank-old")


def _lock_of(target: Path) -> Path:
    return target.with_name(f".{target.name}{LOCK}")


def _take(place: Path, *, new: bool = True) -> int | None:
    """Take a lock; None where the system has none. Raises BlockingIOError where somebody holds it."""
    if fcntl is None:
        return None
    while True:
        lock = os.open(place, os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if new else 0), 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise
        except OSError:  # some network disks have no locks
            if not new:
                os.close(lock)
                raise
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), place.lstat()):
                return lock
        os.close(lock)  # whoever held it took the file away


def _let_go(target: Path, lock: int | None) -> None:
    """Let others have a name; where it could not be settled, the lock stays to tell them."""
    if lock is not None:
        with contextlib.suppress(OSError):
            partial = partial_of(target)
            left = is_left(partial) and not has_checkpoint(partial)
            if not (left or is_marked(target) or is_left(_old_of(target))):
                _lock_of(target.absolute()).unlink()
        os.close(lock)


def _holder(place: Path) -> str:
    try:
        return place.read_text(encoding="utf-8", errors="replace") or "another command"
    except OSError:
        return "another command"


def _sync(path: Path) -> None:
    """Wait until a file or a folder is on the disk, lest a power cut leave a name without what it names."""
    with contextlib.suppress(PermissionError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
