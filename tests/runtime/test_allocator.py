"""Freed memory that stays in the process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import torch
from sagann.runtime.allocator import keep_freed_memory

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

if {keep}:
    assert keep_freed_memory()
block = torch.ones(64 << 20, dtype=torch.uint8)
touched = resident_bytes()
del block
print(touched - resident_bytes())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the GNU C library")
@pytest.mark.parametrize("keep", [False, True])
def test_a_freed_block_stays(keep: bool) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(keep=keep)], capture_output=True, text=True, check=True
    )
    returned_bytes = int(run.stdout)
    assert (returned_bytes < 1 << 20) if keep else (returned_bytes > 60 << 20)
