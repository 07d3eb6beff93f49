"""The cache folder keeps below its limit: the least recently used files go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sagann.cache_limit import limit_folder, mark_used

NOW_S = 1_000_000.0


def write(path: Path, *, used_s: float, changed_s: float = 0.0, num_bytes: int = 100) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(num_bytes))
    os.utime(path, (used_s, changed_s))
    return path


def limited(folder: Path) -> None:
    limit_folder(folder, limit_bytes=400, kept_s=3600, now_s=NOW_S)


def test_the_least_recently_used_files_go_and_folders_that_were_long_empty(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{number}.py", used_s=1000.0 * number) for number in range(4)]
    deep = write(tmp_path / "triton" / "kernel", used_s=500)
    limited(tmp_path)
    # Three quarters of the limit are left.
    assert [each.exists() for each in files] == [False, True, True, True]
    assert not deep.exists()
    os.utime(tmp_path / "triton", (0, 0))
    limited(tmp_path)
    assert not (tmp_path / "triton").exists()
    assert files[3].exists()


def test_a_folder_below_its_limit_stays_as_it_is(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{number}.py", used_s=number) for number in range(4)]
    limited(tmp_path)
    assert all(each.exists() for each in files)


def test_files_that_were_just_used_or_made_stay(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{number}.py", used_s=NOW_S - number) for number in range(5)]
    files.append(write(tmp_path / "made.py", used_s=0, changed_s=NOW_S))
    limited(tmp_path)
    assert all(each.exists() for each in files)


def test_a_kernel_of_triton_stays_or_goes_as_a_whole(tmp_path: Path) -> None:
    # The file of the group is read last and would be removed last; without the others it is an error of Triton.
    def kernel(name: str, used_s: float) -> list[Path]:
        names = ("gated.cubin", "gated.json", "__grp__gated.json")
        return [write(tmp_path / name / each, used_s=used_s + at) for at, each in enumerate(names)]

    old, newer = kernel("old", 100), kernel("newer", 5000)
    source = write(tmp_path / "edge.py", used_s=5001)
    limited(tmp_path)
    assert not any(each.exists() for each in old)
    # One of its files was used before the source, and another after it.
    assert all(each.exists() for each in newer)
    assert not source.exists()


def test_a_file_that_cannot_be_removed_stays_with_its_kernel_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("__grp__gated.json", "gated.cubin")
    kernel = [write(tmp_path / "kernel" / each, used_s=1) for each in names]
    files = [write(tmp_path / f"{number}.py", used_s=10 + number) for number in range(3)]
    unlink = Path.unlink

    def refused(path: Path, missing_ok: bool = False) -> None:
        if path == kernel[0]:
            raise PermissionError
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refused)
    limited(tmp_path)
    assert all(each.exists() for each in kernel)
    # Three quarters of the limit are left, the kernel among them.
    assert [each.exists() for each in files] == [False, False, True]


def test_a_folder_that_becomes_empty_stays_for_a_process_that_adds_to_it(tmp_path: Path) -> None:
    files = [write(tmp_path / "folder" / f"{number}", used_s=number) for number in range(5)]
    os.utime(tmp_path / "folder", (0, 0))
    limit_folder(tmp_path, limit_bytes=100, kept_s=3600, now_s=NOW_S)
    assert not any(each.exists() for each in files)
    assert (tmp_path / "folder").exists()


def test_what_a_link_leads_to_stays(tmp_path: Path) -> None:
    other = write(tmp_path / "other" / "large", used_s=0, num_bytes=1000)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "link").symlink_to(other.parent)
    (tmp_path / "cache" / "file").symlink_to(other)
    limited(tmp_path / "cache")
    assert other.exists()


def test_a_use_leaves_the_time_of_change(tmp_path: Path) -> None:
    path = write(tmp_path / "0.py", used_s=1, changed_s=2)
    mark_used(path)
    assert path.stat().st_mtime == 2
    assert path.stat().st_atime > NOW_S
    mark_used(tmp_path / "missing")


@pytest.mark.parametrize(
    "program",
    [
        "from sagann.kernels.edge.source import import_source; import_source('x = 1', 'library')",
        "from doubling import doubled; doubled(21)",
        "from sagann.kernels.edge.gpu.compiled_files import keep_in_private_folder; keep_in_private_folder()",
    ],
    ids=["source", "machine code", "kernel of Triton"],
)
def test_a_process_that_adds_files_removes_old_ones_at_its_end(program: str, tmp_path: Path) -> None:
    if ".gpu." in program:
        pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")
    kernels, package = tmp_path / "kernels", tmp_path / "package"
    kernels.mkdir(mode=0o700)
    package.mkdir()
    (package / "doubling.py").write_text(
        "from sagann.machine_code import compiled\n\n\n@compiled()\ndef doubled(x):\n    return 2 * x\n"
    )
    # Machine code does not fit beside its source.
    (package / "__pycache__").write_text("no folder")
    old = [write(kernels / f"old{number}", used_s=number, num_bytes=10_000) for number in range(5)]
    script = (
        f"import sagann.cache_limit as limit, sys; limit.limit_folder.__kwdefaults__['limit_bytes'] = 40_000\n"
        f"sys.path.append({str(package)!r})\n{program}"
    )
    environment = {
        name: value for name, value in os.environ.items() if name not in ("TRITON_CACHE_DIR", "NUMBA_CACHE_DIR")
    }
    subprocess.run([sys.executable, "-c", script], check=True, env={**environment, "SAGANN_CACHE": str(tmp_path)})
    assert [each.exists() for each in old][:2] == [False, False]
    assert old[4].exists()
