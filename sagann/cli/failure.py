"""Failure: the message and the exit code of a command that fails.

The code is 1 for a fault of ours, an exception that is not expected; 2 for wrong use or bad input: usage, every SagannError, files, memory,
the user's own model; 130 after Ctrl-C, and 143 after SIGTERM.
"""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from sagann.config import SETTINGS
from sagann.errors import SagannError, first_line, in_one_line, is_interrupt, printable

OUR_FAULT = 1
BAD_INPUT = 2
INTERRUPTED = 130
TERMINATED = 143

# Refusals of the system that depend on the user's paths, rights and disks. Any other error of the system is our fault.
_OF_THE_USER = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_NUMBERS_OF_THE_USER = (errno.EDQUOT, errno.EFBIG, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOSPC, errno.EROFS)
# PyTorch has a class of its own for CUDA's memory only, and may not be imported here.
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "Storage size calculation overflowed",
)
OPTION = re.compile(
    r"\b(?:TrainConfig|ModelConfig|DataConfig|RunConfig|load_run|ImportOptions|EdgeListFormat|Opening)\.(\w+)"
)
"A field or parameter in a message that is an option of the command line; its name is the group."
# What PyTorch says where rows of vertices are added to, or put beside, rows of other vertices.
_NUMBERS_OF_ROWS = re.compile(
    r"must match the size of .* dimension 0|Sizes of tensors must match except in dimension [1-9]"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A message and an exit code."""

    code: int
    "Exit code of the process."
    message: str
    "Description of the failure, with the value, the limit, and the file, option or line concerned."
    hint: str = ""
    "Advice; empty if there is none."
    notes: tuple[str, ...] = ()
    "What else is known, such as the mini-batch that was loaded."

    @property
    def text(self) -> str:
        """The message, a line for each part that is not empty."""
        lines = [f"Error: {self.message}"]
        lines += [f"  hint: {self.hint}"] if self.hint else []
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(map(printable, lines))


def failure_of(
    error: BaseException, *, user_files: Collection[str] = (), arguments: Collection[str] = ()
) -> Failure:
    """Explain an exception of a command with these arguments. One from ``user_files``, absolute paths of the user's files, is not our fault."""

    def option(field: re.Match[str]) -> str:
        """The option that sets a field, with its key in a file unless the option is given."""
        if (setting := SETTINGS.get(name := field[1])) is None:
            return "--" + name.removesuffix("_bytes").replace("_", "-")
        is_given = any(each.partition("=")[0] == setting.flag for each in arguments)
        return setting.flag if is_given else f"{setting.flag}, or {setting.section}.{name} in a file"

    failure, notes = _explained(error, user_files), tuple(getattr(error, "__notes__", ()))
    return replace(failure, message=OPTION.sub(option, failure.message), notes=notes)


def _explained(error: BaseException, user_files: Collection[str]) -> Failure:
    if isinstance(error, SagannError):
        return Failure(code=BAD_INPUT, message=error.message, hint=error.hint)
    if is_interrupt(error):
        return Failure(code=INTERRUPTED, message=str(error) or "interrupted")
    if _is_out_of_memory(error):
        memory = "the device's memory" if "CUDA" in str(error) else "this machine's memory"
        return Failure(
            code=BAD_INPUT,
            message=f"memory ran out: {first_line(error)} (in {memory})",
            hint="Use --memory, which streams the run, or a smaller budget, --sample, a smaller --hidden, fewer --layers or --heads, a smaller --batch-size, fewer --negatives where links are learned, a smaller graph, or a machine with more memory.",
        )
    line = line_of_user(error, user_files)
    if line:
        hint = "Mend the model"
        if _NUMBERS_OF_ROWS.search(str(error)):
            hint = (
                "Rows before a layer and rows after it differ in number on mini-batches: take x[: hop.num_dst] of those before "
                "it (docs/layers.md, A whole model)"
            )
        return Failure(
            code=BAD_INPUT,
            message=f"your model failed: {in_one_line(error)} (in {line})",
            hint=f"{hint}; --debug shows the whole traceback.",
        )
    if isinstance(error, _OF_THE_USER) or (isinstance(error, OSError) and error.errno in _NUMBERS_OF_THE_USER):
        return Failure(
            code=BAD_INPUT,
            message=f"the system refuses: {error.strerror} (in {error.filename or 'a file'})",
            hint="Check that the path is right, that you may use it, and that the disk has room.",
        )
    return Failure(
        code=OUR_FAULT,
        message=f"a fault of sagann, not of yours: {in_one_line(error)} (in {_line_of_ours(error)})",
        hint="Please report it with what you ran, the traceback (run again with --debug), and what "
        "'sagann doctor' says.",
    )


def _is_out_of_memory(error: BaseException) -> bool:
    text = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(sign in text for sign in _OUT_OF_MEMORY)
    )


def line_of_user(error: BaseException, user_files: Collection[str]) -> str:
    """The innermost line of ``user_files`` in the traceback of ``error``; empty if there is none."""
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
