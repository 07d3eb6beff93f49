"""``python -m tests.fuzz --seconds 60``: run the target, add the counts to a file of JSON, and fail if a case fails.

Ctrl-C and SIGTERM end a run early; what it has counted is added all the same.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.fuzz.cases import CORPUS
from tests.fuzz.target import Findings, added, fuzz, table


def main() -> int:
    """Exit code 1 if a case fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long to run")
    parser.add_argument("--seed", type=int, default=None, help="seed of the cases; default the time")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="folder for cases that fail")
    parser.add_argument("--results", type=Path, help="file of JSON to which the counts are added")
    given = parser.parse_args()
    seed = int(time.time()) if given.seed is None else given.seed
    findings = Findings()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        # Whoever reads this line may interrupt the run from now on.
        sys.stdout.write(f"Damaging files, seed {seed}.\n")
        sys.stdout.flush()
        fuzz(given.seconds, seed=seed, corpus=given.corpus, findings=findings)
    if given.results is not None:
        before = json.loads(given.results.read_text()) if given.results.exists() else {}
        body = added(before, findings.counts, seconds=findings.processor_s, seed=seed)
        given.results.write_text(json.dumps(body, indent=1) + "\n")
    sys.stdout.write(table(findings.counts))
    for name, said in findings.faults.items():
        sys.stdout.write(f"\n{name}, kept in {given.corpus}:\n{said}\n")
    return 1 if findings.faults else 0


if __name__ == "__main__":
    sys.exit(main())
