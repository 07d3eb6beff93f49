"""Generated Triton kernels compile to machine code, which needs no device, and do so well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")


SOME = ("gated", "gated, continued", "heads", "merge_sum", "gather_rows", "pick 32 different")


@pytest.mark.slow
@pytest.mark.parametrize("names", [SOME, pytest.param((), marks=pytest.mark.thorough)], ids=["some", "all"])
def test_kernels_compile_without_spills_and_load_16_bytes_a_thread(tmp_path: Path, names: tuple[str, ...]) -> None:
    settings = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "SAGANN_CACHE": str(tmp_path)}
    command = [sys.executable, "-m", "tests.kernels.edge.gpu.compile_driver", *names]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | settings)
    assert ran.returncode == 0, ran.stderr
    lines = [line.split("\t") for line in ran.stdout.splitlines()]
    assert len(lines) == (len(names) or 25)
    figures = {name: [int(figure) for figure in others] for name, *others in lines}
    # All of arithmetic in one kernel is more than any layer asks for.
    usual = [name for name in figures if not name.startswith("float")]
    # A kernel that continues holds a row's earlier results as well, one of padded heads three results: a register may not
    # find room.
    allowed = {name: 4 if name.endswith("continued") or name == "heads, odd" else 0 for name in usual}
    assert {name: figures[name][1] for name in usual if figures[name][1] > allowed[name]} == {}
    # A row of 128 float32 is one load of each thread; 64 registers leave room for 32 warps on a multiprocessor.
    for name in ("gated", "gated, continued"):
        registers, _, widest = figures[name]
        assert widest == 128
        assert registers <= 64
