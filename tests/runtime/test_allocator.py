"""Freed memory that stays in the process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import torch
from sagann.runtime.allocator import give_back_freed_memory, keep_freed_memory

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

assert keep_freed_memory() if {keep} else give_back_freed_memory()
returned_bytes = 0
# The second block is one that the C library keeps unless told otherwise, as it was larger than what went before.
for _ in range(2):
    block = torch.ones(20 << 20, dtype=torch.uint8)
    touched = resident_bytes()
    del block
    returned_bytes = touched - resident_bytes()
print(returned_bytes)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the GNU C library")
@pytest.mark.parametrize("keep", [False, True])
def test_a_freed_block_stays_or_goes_as_told(keep: bool) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(keep=keep)], capture_output=True, text=True, check=True
    )
    returned_bytes = int(run.stdout)
    assert (returned_bytes < 1 << 20) if keep else (returned_bytes > 18 << 20)
