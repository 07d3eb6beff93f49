"""Progress of another process: whether it still gets on, however few turns of the processor it is given."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_BUSY = "RDT"
"States of a thread that would go on if it were let: it waits for its turn, for a disk, or until it is continued."


class Progress:
    """What the system's account of a process tells about its work."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}/task")
        self._known_s = self.used_s

    @property
    def used_s(self) -> float:
        """Seconds of the processor that the process has used; 0 if it has ended."""
        try:
            fields = (self._folder.parent / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def is_made(self) -> bool:
        """Whether the process has used the processor since the last call, or would if it were let."""
        before, self._known_s = self._known_s, self.used_s
        return self._known_s > before or any(state in _BUSY for state in self._states())

    def _states(self) -> str:
        found = ""
        for stat in self._folder.glob("*/stat"):
            try:
                found += stat.read_text().rpartition(")")[2].split()[0]
            except OSError:
                # The thread has ended meanwhile.
                continue
        return found
