"""Another user of the machine, who may not do what root may.

``python -m tests.other_user HOME JSON`` runs sagann as that user: JSON is a list of commands, each a list of arguments.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
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


def _ended(arguments: list[str]) -> dict[str, Any]:
    """How a command ends, run in this process."""
    from sagann.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


if __name__ == "__main__":
    import torch

    from sagann.graph import random_split, sbm_graph
    from sagann.storage import save_graph

    torch.set_num_threads(1)
    # Modules are imported as they are needed, by a first run, because the other user may not be able to read them.
    with tempfile.TemporaryDirectory() as folder:
        graph = sbm_graph(
            60, num_classes=3, average_degree=4, homophily=0.8, num_features=6, feature_noise=0.5, seed=1
        )
        save_graph(random_split(graph, seed=1), f"{folder}/graph")
        run = [
            "--data",
            f"{folder}/graph",
            "--hidden",
            "8",
            "--epochs",
            "1",
            "--memory",
            "14kB",
            "--out",
            f"{folder}/run",
        ]
        for first in (["train", *run], ["evaluate", "--run", f"{folder}/run"]):
            assert _ended(first)["code"] == 0
    become_other()
    # Until here compiled code was found in the cache of this user.
    os.environ["HOME"] = sys.argv[1]
    os.environ.pop("XDG_CACHE_HOME", None)
    sys.stdout.write(json.dumps([_ended(arguments) for arguments in json.loads(sys.argv[2])]))
