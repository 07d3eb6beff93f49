"""The target: a process that makes and runs cases, and another one that watches it, counts, and keeps what failed."""

from __future__ import annotations

import json
import os
import random
import re
import select
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.cases import Case
from tests.fuzz.kinds import KINDS
from tests.fuzz.mutations import mutated
from tests.fuzz.progress import Progress
from tests.fuzz.runner import LIMIT_S, Runner

ROOT = Path(__file__).parents[2]
# Seconds of the processor until a line: more than a command has, and for the first line more than the sound files and their kernels
# take. A command that ends neither by itself nor by its limit is in a native kernel.
_MOST_S, _MOST_AT_FIRST_S = 2 * LIMIT_S, 1800
_ASLEEP_S = 60
"Seconds that a process may sleep until a line. One that waits for its turn, or for a disk, does not sleep."
_CURRENT = "current"
_OUTCOMES = {"accepted": "accepted", "refused": "refused", "fault": "faults"}


@dataclass(kw_only=True, slots=True)
class Findings:
    """What a run of the target found."""

    seconds: float = 0.0
    "How long cases have been run."
    processor_s: float = 0.0
    "Seconds of the processor that cases have taken: beside other work, less than ``seconds``."
    counts: dict[str, dict[str, int]] = field(
        default_factory=lambda: {kind.name: {"cases": 0, **dict.fromkeys(_OUTCOMES.values(), 0)} for kind in KINDS}
    )
    "By name of the kind: cases, accepted, refused, faults."
    faults: dict[str, str] = field(default_factory=dict)
    "Name of the first case of each fault, and what the program said."

    def add(self, kind: str, outcome: str, said: str, case: Case, corpus: Path) -> None:
        """Count a case, and keep it if it is the first one with its fault."""
        self.counts[kind]["cases"] += 1
        self.counts[kind][_OUTCOMES[outcome]] += 1
        if outcome == "fault" and _signature(said) not in map(_signature, self.faults.values()):
            case.save(corpus)
            self.faults[case.name] = said


def _signature(said: str) -> str:
    """What faults of one cause have in common: the last line of the program or of the traceback, without numbers and names."""
    lines = [line for line in said.splitlines() if "in:  sagann/" in line or "line " in line or "rror" in line]
    return re.sub(r"\d+|'[^']*'", "", "\n".join(lines[:3]) or said[:200])


def fuzz(seconds: float, *, seed: int, corpus: Path, findings: Findings | None = None) -> Findings:
    """Run random cases of all kinds in turn, for so many seconds; cases that fail go into the folder ``corpus``.

    ``findings`` are added to as cases end, for a caller who is interrupted.
    """
    findings, number = findings or Findings(), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        has_died = True
        # A process that ends by itself has used the time up.
        while has_died and findings.seconds < seconds:
            has_died, last_s = False, None
            for line in _watched(folder, seed=seed, first=number, seconds=seconds - findings.seconds):
                kept = list((folder / _CURRENT).glob("*.zip"))
                if not kept:
                    raise RuntimeError(f"the target does not start: {line['said']}")
                case = Case.load(kept[0])
                findings.add(case.kind, line["outcome"], line["said"], case, corpus)
                findings.processor_s += line.get("processor_s", 0.0)
                has_died = line["has_died"]
                number, before_s, last_s = line["number"] + 1, last_s, time.monotonic()
                # The time before the first case is not counted.
                findings.seconds += last_s - (before_s or last_s)
    return findings


def _watched(folder: Path, *, seed: int, first: int, seconds: float) -> Iterator[dict[str, Any]]:
    """A line for each case of a process; if the process dies or hangs, the last line says so."""
    command = [sys.executable, "-m", "tests.fuzz.target", str(folder), str(seed), str(first), str(seconds)]
    number = first
    with (folder / "log").open("wb") as log:
        # In a session of its own, Ctrl-C does not reach the process, which would count it as a fault.
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.PIPE, cwd=ROOT, start_new_session=True
        )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        while True:
            hangs = _hangs(process, most_s=_MOST_AT_FIRST_S if number == first else _MOST_S)
            text = b"" if hangs else process.stdout.readline()
            if not text:
                break
            line = {**json.loads(text), "has_died": False}
            number = line["number"] + 1
            yield line
            # The case lies in its folder until it is counted.
            process.stdin.write(b"\n")
            process.stdin.flush()
        if hangs:
            process.kill()
        if process.wait() != 0:
            log_end = (folder / "log").read_text(errors="replace")[-2000:]
            said = hangs or f"the process ended with {process.returncode}\n{log_end}"
            yield {"number": number, "outcome": "fault", "said": said, "has_died": True}
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _hangs(process: subprocess.Popen[bytes], *, most_s: float, asleep_s: int = _ASLEEP_S) -> str:
    """Wait for a line of a process. Empty if there is one or the process has ended, else how the process hangs."""
    progress, num_asleep = Progress(process.pid), 0
    started_s = progress.used_s
    while not select.select([process.stdout], [], [], 1.0)[0]:
        num_asleep = 0 if progress.is_made() else num_asleep + 1
        if num_asleep >= asleep_s:
            return f"no end: it has slept for {asleep_s} s"
        if progress.used_s - started_s > most_s:
            return f"no end after {most_s} s of the processor"
    return ""


def worker(folder: Path, seed: int, first: int, seconds: float) -> None:
    """Make and run cases from number ``first`` on; a line on stdout for each, then wait for a line on stdin."""
    import torch

    torch.set_num_threads(1)
    results = os.fdopen(os.dup(1), "w", buffering=1)
    # What the program writes past its streams must not get between the lines.
    os.dup2(2, 1)
    runner, current = Runner(folder), folder / _CURRENT
    runner.warm_up()
    current.mkdir(exist_ok=True)
    number, ends_s, used_s = first, time.monotonic() + seconds, time.process_time()
    while time.monotonic() < ends_s:
        rng = random.Random(f"{seed} {number}")
        kind = KINDS[number % len(KINDS)]
        case = made(runner, kind.name, rng)
        for path in current.glob("*.zip"):
            path.unlink()
        case.save(current)
        result = runner.run(case, (rng.choice(kind.commands),))
        before_s, used_s = used_s, time.process_time()
        line = {"number": number, "outcome": result.outcome, "said": result.said, "processor_s": used_s - before_s}
        results.write(json.dumps(line) + "\n")
        if not sys.stdin.readline():
            # Nobody watches any more.
            return
        number += 1


def made(runner: Runner, name: str, rng: random.Random) -> Case:
    """A random case of a kind."""
    kind = next(kind for kind in KINDS if kind.name == name)
    folder = runner.prepare(kind)
    victims = sorted({path for pattern in kind.victims for path in folder.glob(pattern) if path.is_file()})
    files: dict[Path, bytes] = {}
    while not files or any(is_long_work(path, content) for path, content in files.items()):
        files = {}
        for victim in rng.sample(victims, k=min(len(victims), rng.choice((1, 1, 1, 2)))):
            files |= mutated(victim, rng)
    if kind.whole:
        files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} | files
    return Case.of(kind.name, files, folder)


def is_long_work(path: Path, content: bytes) -> bool:
    """Whether a configuration asks for work that is sound and takes minutes."""
    if path.suffix != ".toml":
        return False
    with suppress(ValueError, RecursionError, AttributeError, TypeError):
        tables = tomllib.loads(content.decode())
        return bool(tables.get("model", {}).get("layers", 2) > 50 or tables.get("train", {}).get("epochs", 2) > 50)
    return False


def added(
    before: Mapping[str, Any], counts: Mapping[str, Mapping[str, int]], *, seconds: float, seed: int
) -> dict[str, Any]:
    """The counts of all runs: those ``before``, empty for none, and those of another run, of so many seconds of the processor."""
    known = before.get("kinds", {})
    return {
        "seconds": before.get("seconds", 0) + seconds,
        "seeds": [*before.get("seeds", []), seed],
        "kinds": {
            kind: {name: count + known.get(kind, {}).get(name, 0) for name, count in found.items()}
            for kind, found in counts.items()
        },
    }


def table(counts: dict[str, dict[str, int]]) -> str:
    """The counts as a table of Markdown."""
    rows: list[Sequence[object]] = [("files", "cases", "accepted", "refused with a message", "faults")]
    rows += [("---", "--:", "--:", "--:", "--:")]
    rows += [(name, *(f"{count:,}" for count in found.values())) for name, found in counts.items()]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


if __name__ == "__main__":
    worker(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
