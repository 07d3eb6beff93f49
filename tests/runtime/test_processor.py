from __future__ import annotations

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
