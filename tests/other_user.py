"""Another user of the machine, who may not do what root may.

``python -m tests.other_user JSON`` runs sagann as that user: JSON is a list of commands, each a list of arguments.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

OTHER = 65534
"Id of the user, and of its group."
ROOT = Path(__file__).parents[1]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def become_other() -> None:
    """From here on, this process is the other user's."""
    os.setgroups([])
    os.setgid(OTHER)
    os.setuid(OTHER)


def as_other(before: str, code: str) -> str:
    """Run code as the other user, and return what it prints. The code ``before`` runs as root, and imports what is needed.

    The other user may not read Python's own files, where they lie in the home folder of root.
    """
    program = f"import os, tests.other_user as other\n{before}\nother.become_other()\n{code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def copy_as_other(source: Path, target: Path) -> None:
    """Copy a file or folder as the other user, to whom the copy belongs."""
    subprocess.run(["cp", "-r", source, target], user=OTHER, group=OTHER, extra_groups=[], check=True)


def _ended(arguments: list[str]) -> dict[str, Any]:
    """How a command ends, run in this process."""
    from sagann.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    # Modules are imported as they are needed, by a first run, because the other user may not be able to read them.
    with tempfile.TemporaryDirectory() as folder:
        training = [
            "train",
            "--data",
            "demo",
            "--hidden",
            "8",
            "--epochs",
            "1",
            "--memory",
            "20MiB",
            "--out",
            f"{folder}/run",
        ]
        for first in (training, ["evaluate", "--run", f"{folder}/run"]):
            assert _ended(first)["code"] == 0
    become_other()
    sys.stdout.write(json.dumps([_ended(arguments) for arguments in json.loads(sys.argv[1])]))
