"""Failure: what a person is told when a command fails, and the exit code.

======  =====================================================================================
0       done
1       our fault: an exception that nobody foresaw
2       wrong use or bad input: usage, every SagannError, files, memory, the user's own model
130     interrupted by Ctrl-C
======  =====================================================================================
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from sagann.errors import SagannError

OUR_FAULT = 1
BAD_INPUT = 2
INTERRUPTED = 130

# What the system refuses because of what it was asked for. Any other error of it is a fault of ours.
_OF_THE_USER = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EEXIST,
        errno.EFBIG,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A message and an exit code."""

    code: int
    "What the process exits with."
    what: str
    "What failed, with the value and the limit."
    where: str = ""
    "The object concerned, or empty."
    fix: str = ""
    "What to do about it, or empty."

    @property
    def text(self) -> str:
        """The message, two lines or more."""
        lines = [f"Error: {self.what}"]
        lines += [f"  in:  {self.where}"] if self.where else []
        lines += [f"  fix: {self.fix}"] if self.fix else []
        # Names may hold what the system made of bytes that are no UTF-8, which no stream takes.
        return "\n".join(lines).encode(errors="backslashreplace").decode()


def failure_of(error: BaseException, *, user_files: Collection[str] = ()) -> Failure:
    """Explain an exception.

    Args:
        error: what was raised.
        user_files: absolute paths of the user's own Python files; an exception from there is not our fault.
    """
    if isinstance(error, SagannError):
        return Failure(code=BAD_INPUT, what=f"{error.what}: {error.value}", where=error.where, fix=error.fix)
    if isinstance(error, KeyboardInterrupt):
        return Failure(code=INTERRUPTED, what="interrupted")
    if _is_out_of_memory(error):
        return Failure(
            code=BAD_INPUT,
            what=f"memory ran out: {_first_line(error)}",
            where=_device_of(error),
            fix="Use a smaller --hidden, fewer --layers or --heads, a smaller graph, or a machine with more memory.",
        )
    line = line_of_user(error, user_files)
    if line:
        return Failure(
            code=BAD_INPUT,
            what=f"your model failed: {type(error).__name__}: {_first_line(error)}",
            where=line,
            fix="Mend the model; --debug shows the whole traceback.",
        )
    if isinstance(error, OSError) and error.errno in _OF_THE_USER:
        return Failure(
            code=BAD_INPUT,
            what=f"the system refuses: {error.strerror}",
            where=str(error.filename or "a file"),
            fix="Check that the path is right, that you may use it, and that the disk has room.",
        )
    return Failure(
        code=OUR_FAULT,
        what=f"a fault of sagann, not of yours: {type(error).__name__}: {_first_line(error)}",
        where=_line_of_ours(error),
        fix="Please report it with what you ran, the traceback (run again with --debug), and what "
        "'sagann doctor' says.",
    )


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    text = str(error)
    # Torch has a class of its own for CUDA only, and here it may not even be imported.
    signs = ("can't allocate memory", "not enough memory", "out of memory", "Storage size calculation overflowed")
    return isinstance(error, RuntimeError) and any(sign in text for sign in signs)


def _device_of(error: BaseException) -> str:
    return "the device's memory" if "CUDA" in str(error) else "this machine's memory"


def line_of_user(error: BaseException, user_files: Collection[str]) -> str:
    """The innermost line of the user's own files that ``error`` came through; empty where it came through none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in user_files or str(Path(frame.filename).absolute()) in user_files:
            return f"{frame.filename}, line {frame.lineno}, {frame.name}"
    return ""


def _line_of_ours(error: BaseException) -> str:
    package = Path(__file__).parents[1]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(package):
            return f"sagann/{path.relative_to(package)}, line {frame.lineno}, {frame.name}"
    return ""


def _first_line(error: BaseException) -> str:
    # Python itself refuses to be without words only in a MemoryError.
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def is_closed_pipe(error: BaseException | None) -> bool:
    """Whether the reader of our output went away, as ``head`` does when it has what it wants."""
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def print_traceback(error: BaseException) -> None:
    """Write the traceback of ``error`` to stderr."""
    traceback.print_exception(error, file=sys.stderr)
