"""Runner: the sound files of every kind, and the program run on a case in this process, within a time and a memory.

Time is the processor's: a case that waits while other programs run is not slow.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import resource
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Literal
from unittest import mock

from sagann.free_space import Memory
from tests.fuzz.cases import Case
from tests.fuzz.kinds import KINDS, LOAD, Command, Kind

Outcome = Literal["accepted", "refused", "fault"]
LIMIT_S = 60
"Seconds of the processor that a command may take."
FREE_BYTES = 2**30
"Free memory and free disk space of the machine, as the program sees them."
SPACE_BYTES = 3 * 2**30
"Address space that a case may take beside that of the loaded program."
# A message of ours begins so; one of the parser of options ends in a box.
_MESSAGE = re.compile(r"^Error: ", re.MULTILINE)


class TimeIsUpError(BaseException):
    """The command took too much of the processor's time. No handler of the program catches it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How a case ended."""

    outcome: Outcome
    "The worst outcome of its commands."
    said: str = ""
    "Command line and output of a command with a fault; empty without a fault."


class Runner:
    """Runs cases in ``folder``, where each kind has its sound files."""

    def __init__(self, folder: Path) -> None:
        self._sound, self._work = folder / "sound", folder / "work"
        self._kinds = {kind.name: kind for kind in KINDS}

    def prepare(self, kind: Kind) -> Path:
        """The folder of work with the sound files of a kind, which are made the first time."""
        sound = self._sound / kind.name
        os.chdir("/")
        shutil.rmtree(self._work, ignore_errors=True)
        if sound.exists():
            shutil.copytree(sound, self._work)
            os.chdir(self._work)
            return self._work
        self._work.mkdir(parents=True)
        os.chdir(self._work)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            kind.build()
        shutil.copytree(self._work, sound)
        return self._work

    def warm_up(self) -> None:
        """Make all sound files, and run every command on them: kernels are compiled, which may take longer than a case."""
        for kind in KINDS:
            result = self.run(Case(kind=kind.name, files={}), limit_s=10 * LIMIT_S)
            if result.outcome != "accepted":
                raise RuntimeError(f"sound files are not accepted: {result.said or kind.name}")

    def run(self, case: Case, commands: tuple[Command, ...] | None = None, *, limit_s: float = LIMIT_S) -> Result:
        """Run commands of the kind, all by default, each on the files of the case."""
        kind, outcomes = self._kinds[case.kind], set()
        for command in kind.commands if commands is None else commands:
            case.apply(self.prepare(kind))
            outcome, said = _run(command, limit_s)
            if outcome == "fault":
                return Result(outcome="fault", said=f"sagann {' '.join(command)}\n{said}")
            outcomes.add(outcome)
        return Result(outcome="refused" if "refused" in outcomes else "accepted")


def _run(command: Command, limit_s: float) -> tuple[Outcome, str]:
    from sagann.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    free = Memory(total_bytes=None, available_bytes=FREE_BYTES, limit_bytes=None, limit_used_bytes=None)
    disk = SimpleNamespace(total=2 * FREE_BYTES, used=FREE_BYTES, free=FREE_BYTES)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch("sagann.free_space.memory", return_value=free),
            mock.patch("shutil.disk_usage", return_value=disk),
            warnings.catch_warnings(),
            limited(limit_s),
        ):
            warnings.simplefilter("ignore")
            code = _loaded(command[1]) if command[0] == LOAD else main(list(command))
    except TimeIsUpError as error:
        return (
            "fault",
            f"no end after {limit_s} s of the processor\n{''.join(traceback.format_tb(error.__traceback__)[-3:])}",
        )
    return judged(code, err.getvalue())


def _loaded(name: str) -> int:
    """Open a dataset in the current folder from Python; exit code and message are those that a command would have."""
    from sagann import load_dataset
    from sagann.cli.failure import failure_of

    try:
        load_dataset(name, root=".", download=False)
    except Exception as error:  # noqa: BLE001 - every failure ends here, as in the command
        failure = failure_of(error)
        sys.stderr.write(f"{failure.text}\n")
        return failure.code
    return 0


def judged(code: int, said: str) -> tuple[Outcome, str]:
    """The outcome of an exit code and of what was written to stderr, with what is wrong with them."""
    if "Traceback" in said or code not in (0, 2):
        return "fault", f"exit code {code}\n{said}"
    if code == 0:
        return "accepted", ""
    if len(_MESSAGE.findall(said)) != 1 or "memory ran out" in said:
        return "fault", f"exit code 2 without one clear message\n{said}"
    return "refused", ""


@contextlib.contextmanager
def limited(limit_s: float) -> Iterator[None]:
    """Inside the block, TimeIsUpError comes after so many seconds of the processor, and the address space is limited."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeIsUpError

    before, space = signal.signal(signal.SIGPROF, ring), resource.getrlimit(resource.RLIMIT_AS)
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + SPACE_BYTES, space[1]))
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, space)
