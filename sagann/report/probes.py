"""Probes: small computations with a known result, which show whether a part of sagann works on this machine.

Each runs in a process of its own, because a broken library or driver can crash a process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

# Without what lies in the current folder.
_COMMAND = (sys.executable, "-P", "-m", "sagann.report.probes")
_TIMEOUT_S = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of a probe."""

    name: str
    "Name of the probe."
    ok: bool
    "Whether the part works."
    detail: str
    "Facts of the part, or the reason why the part does not work."

    @property
    def core(self) -> bool:
        """Whether sagann needs this part."""
        return self.name != "CUDA"


def _numba_threads() -> str:
    import numba
    import numpy as np

    @numba.njit(parallel=True)  # type: ignore[untyped-decorator,unused-ignore]
    def double(values: np.ndarray) -> None:
        for i in numba.prange(len(values)):
            values[i] *= 2

    values = np.arange(1000)
    double(values)
    _expect(int(values.sum()), 999_000)
    layer: str = numba.threading_layer()  # type: ignore[attr-defined]
    note = "; install tbb or an OpenMP library if several Python threads compute" if layer == "workqueue" else ""
    return f"threading layer '{layer}', {numba.get_num_threads()} threads{note}"


def _kernels() -> str:
    import torch

    from sagann.graph import Topology
    from sagann.kernels.edge.cpu.launch import launcher
    from sagann.nn import GatedGCN
    from sagann.runtime.in_memory.engine import CompiledEngine
    from sagann.saga.engine import NaiveEngine, using_engine

    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(100, (2, 5000), generator=generator)
    topology, x = Topology.from_coo(src=src, dst=dst, num_src=100), torch.randn(100, 20, generator=generator)
    layer = GatedGCN(20, 3)
    with using_engine(CompiledEngine()):
        fused = layer(topology, x)
    with using_engine(NaiveEngine()):
        plain = layer(topology, x)
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)
    return f"a layer compiled and equal to plain PyTorch; kernels run on {launcher()[0]}, several may enter at once"


def _files() -> str:
    import io

    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet
    import torch
    from safetensors.torch import load, save

    from sagann.graph import Graph, Topology
    from sagann.storage import check_dataset, open_graph, save_graph

    topology = Topology.from_coo(src=torch.tensor([0, 1]), dst=torch.tensor([1, 2]), num_src=3)
    with tempfile.TemporaryDirectory() as folder:
        save_graph(Graph(topology=topology, features=torch.eye(3)), f"{folder}/graph")
        check_dataset(f"{folder}/graph")
        _expect(open_graph(f"{folder}/graph").topology.indices.tolist(), [0, 1])
    _expect(pyarrow.csv.read_csv(io.BytesIO(b"src,dst\n1,2\n")).column("dst").to_pylist(), [2])
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"src": [1]}), buffer)
    _expect(pyarrow.parquet.read_table(buffer).column("src").to_pylist(), [1])
    _expect(load(save({"w": torch.ones(2)}))["w"].tolist(), [1.0, 1.0])
    return "a dataset opened by memory map; CSV, Parquet and safetensors written and read"


def _cuda() -> str:
    import torch

    if not torch.cuda.is_available():
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        raise ValueError(f"no CUDA device; torch is built {built}")
    found = []
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        _expect(float(torch.ones(8, device=f"cuda:{number}").sum()), 8.0)
        found.append(f"cuda:{number} {properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    return "; ".join(found)


_PROBES = {"numba threads": _numba_threads, "kernels": _kernels, "files": _files, "CUDA": _cuda}


def run_probes() -> list[Finding]:
    """Run each probe in a process of its own, several at the same time."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(_run, _PROBES))


def _run(name: str) -> Finding:
    try:
        ended = subprocess.run([*_COMMAND, name], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return Finding(name=name, ok=False, detail=f"no answer within {_TIMEOUT_S} s")
    code = ended.returncode
    # Lines before the last one are a library's, or a traceback's.
    words = (ended.stderr if code else ended.stdout).strip().splitlines() or [f"exit code {code}"]
    detail = f"the process ended with {signal.Signals(-code).name}" if code < 0 else words[-1]
    return Finding(name=name, ok=code == 0, detail=detail.removeprefix("ValueError: "))


def _expect(found: object, expected: object) -> None:
    if found != expected:
        raise ValueError(f"{found}, expected {expected}")


if __name__ == "__main__":
    sys.stdout.write(_PROBES[sys.argv[1]]())
    sys.stdout.flush()
    # Threads of libraries may abort a process that ends, which is no finding.
    os._exit(0)
