"""PyG's own tests of its layers: what they call gives the same numbers with sagann, or is refused by an error of ours.

The tests of PyG are no part of this project. They lie beside the data, and run in a process of their own (tests/interop/pyg_peers.py).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(900)]

REFUSED = [
    "ChebConv",
    "ClusterGCNConv",
    "DirGNNConv",
    "EGConv",
    "FastRGCNConv",
    "MFConv",
    "MeshCNNConv",
    "PDNConv",
    "RGATConv",
    "RGCNConv",
    "SuperGATConv",
    "WLConv",
    "WLConvContinuous",
]
"Layers of PyG that sagann refuses, whatever they are called with."
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def table(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """For each layer, what came of its calls, and of how many."""
    tests = data_folder.parent / "peers" / "pyg-2.8.0" / "test" / "nn" / "conv"
    if not tests.is_dir():
        pytest.skip("the tests of PyG are not here: put them beside the exchange datasets, in ../peers/pyg-2.8.0")
    folder = tmp_path_factory.mktemp("pyg_peers")
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "SAGANN_PEERS_OUT": str(folder / "table.json")}
    # The tests' folder is only read. What torch.compile makes of a layer is not compared.
    options = f"-q -c {os.devnull} --import-mode=importlib -p no:cacheprovider -p tests.interop.pyg_peers".split()
    run = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", *options, "-k", "not compile", str(tests)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    found: dict[str, dict[str, int]] = json.loads((folder / "table.json").read_text())
    return found


def test_layers_of_pyg_give_their_numbers_or_are_refused(table: dict[str, dict[str, int]]) -> None:
    wrong = [
        f"{layer}: {found}"
        for layer, calls in table.items()
        for found in calls
        if not found.startswith(("equal", "refused", "not compared"))
    ]
    assert not wrong
    (promised,) = re.findall(
        r"\(`tests/interop/test_pyg_peers\.py`\):\n\n([\w,\s]+)\.\n", (ROOT / "docs/pyg.md").read_text()
    )
    assert set(promised.replace(",", " ").split()) <= {layer for layer, calls in table.items() if "equal" in calls}


def test_refused_layers_of_pyg_are_known(table: dict[str, dict[str, int]]) -> None:
    def is_refused(calls: dict[str, int]) -> bool:
        return "equal" not in calls and any(found.startswith("refused") for found in calls)

    # Layers that a test of PyG defines have its name before their own.
    assert sorted(REFUSED) == [layer for layer, calls in table.items() if "." not in layer and is_refused(calls)]
