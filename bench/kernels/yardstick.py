"""The hand-written C++ gathers, compiled on the spot: ``Yardstick(topology).run("sum", ...)``.

They need g++, and a processor with AVX2 or AVX-512.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from torch import Tensor

from sagann.graph import Topology
from sagann.runtime.processor import vector_instructions

SOURCE = Path(__file__).parent / "yardstick.cpp"
HEADER = SOURCE.parent / "lanes.h"
FLAGS = ["-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC", "-std=c++17"]
NUM_CHUNKS = 128


def can_run() -> bool:
    """Whether the gathers can be compiled and run on this machine."""
    return shutil.which("g++") is not None and vector_instructions() is not None


@cache
def library() -> ctypes.CDLL:
    """Compile the yardsticks, or load them if the same text was compiled before."""
    text = b"".join(path.read_bytes() for path in (SOURCE, HEADER, Path(__file__)))
    name = hashlib.sha256(text).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"sagann_yardstick_{name}.so"
    if not path.exists():
        code = path.with_suffix(".o")
        subprocess.run(["g++", *FLAGS, "-c", str(SOURCE), "-o", str(code)], check=True)
        # Linked without -ffast-math, with which loading the library would turn small numbers into 0 in the whole process.
        subprocess.run(["g++", "-fopenmp", "-shared", str(code), "-o", str(path)], check=True)
    return ctypes.CDLL(str(path))


class Yardstick:
    """The gathers over one topology with int32 ids."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        indptr = topology.indptr.numpy()
        targets = np.linspace(0, topology.num_edges, NUM_CHUNKS + 1)[1:-1]
        inner = np.searchsorted(indptr, targets)
        self.bounds = np.unique(np.concatenate([[0, topology.num_dst], inner])).astype(np.int64)

    def run(self, operation: str, *arrays: Tensor, num_features: int) -> None:
        """Run an operation: its input arrays, then its results, all float32 but the maximum's arguments."""
        function = getattr(library(), f"yardstick_{operation}")
        pointers = [self.topology.indptr, self.topology.indices, *arrays]
        function(
            *(ctypes.c_void_p(tensor.data_ptr()) for tensor in pointers),
            ctypes.c_int64(num_features),
            ctypes.c_void_p(self.bounds.ctypes.data),
            ctypes.c_int64(len(self.bounds) - 1),
        )
