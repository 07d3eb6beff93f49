"""What the machine is, and what the process does with its memory."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from sagann.runtime import processor
from sagann.runtime.processor import (
    DEFAULT_CACHE_BYTES,
    cache_bytes,
    processor_name,
    vector_instructions,
)


def caches(folder: Path, *found: tuple[str, str]) -> Path:
    """A folder of caches as (level, size)."""
    for number, (level, size) in enumerate(found):
        (folder / f"index{number}").mkdir()
        (folder / f"index{number}" / "level").write_text(f"{level}\n")
        (folder / f"index{number}" / "size").write_text(f"{size}\n")
    return folder


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([("1", "48K"), ("1", "32K"), ("2", "1024K"), ("3", "32768K")], 32 << 20),
        # The largest level counts, not the largest cache.
        ([("2", "4M"), ("3", "2048K")], 2 << 20),
        ([("1", "64K"), ("2", "512K")], 512 << 10),
        ([("1", "65536")], 65536),
        ([("1", "32K"), ("x", "1M"), ("3", "?")], 32 << 10),
        ([("3", "0K")], DEFAULT_CACHE_BYTES),
        ([], DEFAULT_CACHE_BYTES),
    ],
)
def test_the_last_level_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list[tuple[str, str]], expected: int
) -> None:
    monkeypatch.setattr(processor, "_CACHES", caches(tmp_path, *found))
    assert cache_bytes() == expected


def test_the_processors_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "_CPUINFO", cpuinfo)
    assert processor_name()
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Some: Processor @ 3 GHz\nmodel name\t: Another\n")
    assert processor_name() == "Some: Processor @ 3 GHz"
    cpuinfo.write_text("model name\t: Some\nflags\t\t: fpu avx2 fma\n")
    assert processor_name() == "Some (AVX2)"
    cpuinfo.write_bytes(b"Features : fp\xff\n")
    assert processor_name()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("flags\t\t: fpu avx2 fma avx512f avx512bw", "AVX-512"),
        ("flags\t\t: fpu avx avx2 fma", "AVX2"),
        ("flags\t\t: fpu avx avx2", None),
        ("flags\t\t: fpu sse2", None),
        ("Features\t: fp asimd", None),
    ],
)
def test_vector_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, expected: str | None
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "_CPUINFO", cpuinfo)
    assert vector_instructions() is None
    cpuinfo.write_text(f"processor\t: 0\nmodel name\t: Some\n{flags}\n")
    assert vector_instructions() == expected


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
FREED = """
import torch
from sagann.runtime.allocator import give_back_freed_memory

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

if {told}:
    assert give_back_freed_memory()
# The C library keeps the second block unless told otherwise, as it is smaller than one that went before.
for size in (24 << 20, 20 << 20):
    block = torch.ones(size, dtype=torch.uint8)
    touched = resident_bytes()
    del block
    returned_bytes = touched - resident_bytes()
print(returned_bytes)
"""
HUGE = """
import torch, sagann
block = torch.ones(64 << 20, dtype=torch.uint8)
print(sum(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHugePages")))
"""
TRIMMED = """
from sagann.runtime.allocator import HeapGuard, _anonymous_bytes
tight, roomy = HeapGuard(8 << 20), HeapGuard(1 << 30)
# Blocks that are too small for the C library to ask the system for each. The last one keeps the heap's end where it is.
blocks = [bytearray(40_000) for _ in range(1500)]
last = bytearray(40_000)
del blocks
before = _anonymous_bytes()
roomy.check()
assert before - _anonymous_bytes() < 1 << 20
tight.check()
print(before - _anonymous_bytes())
"""

KEPT = """
from sagann.runtime.allocator import HeapGuard, _anonymous_bytes
HeapGuard(8 << 20)
before = _anonymous_bytes()
blocks = [bytearray(40_000) for _ in range(1500)]
last = bytearray(40_000)
del blocks
print(HeapGuard(8 << 20)._limit_bytes - (8 << 20) - before)
"""


def printed_by(program: str, **environment: str) -> int:
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"} | environment,
    )
    return int(run.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the GNU C library")
@pytest.mark.parametrize("told", [False, True])
def test_freed_memory_goes_back_where_that_is_asked_for(told: bool) -> None:
    returned_bytes = printed_by(FREED.format(told=told))
    assert (returned_bytes > 18 << 20) if told else (returned_bytes < 1 << 20)


@pytest.mark.skipif(
    not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text(), reason="the system gives no huge pages"
)
def test_large_tensors_lie_on_huge_pages_unless_the_user_says_no() -> None:
    assert printed_by(HUGE) > 32 << 10
    if "[madvise]" in HUGE_PAGES.read_text():
        assert printed_by(HUGE, THP_MEM_ALLOC_ENABLE="0") < 16 << 10


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the GNU C library")
def test_the_heap_is_trimmed_when_the_process_exceeds_its_budget() -> None:
    assert printed_by(TRIMMED) > 30 << 20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the GNU C library")
def test_memory_that_the_heap_keeps_does_not_count_as_used_before_a_budget() -> None:
    assert abs(printed_by(KEPT)) < 2 << 20
