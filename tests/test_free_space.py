from __future__ import annotations

from pathlib import Path

import pytest

from sagann import free_space
from sagann.errors import InputError
from sagann.free_space import Room, disk_of, host_room, is_memory, memory

GIB = 2**30


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of the test in place of the system's."""
    monkeypatch.setattr(free_space, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(free_space, "_CGROUPS", tmp_path / "cgroup")


def machine(tmp_path: Path, cgroup: str, files: dict[str, object]) -> None:
    """A /proc with 16 GiB, and cgroup files by path under /sys/fs/cgroup."""
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    root.mkdir()
    (proc / "meminfo").write_text("MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nHugePages_Total: 0\n")
    (proc / "self" / "cgroup").write_text(cgroup)
    for name, value in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{value}\n")


def test_without_a_limit(tmp_path: Path) -> None:
    machine(tmp_path, "0::/user\n", {"user/memory.max": "max"})
    found = memory()
    assert (found.total_bytes, found.available_bytes, found.limit_bytes) == (16 * GIB, 8 * GIB, None)
    assert found.usable_bytes == 8 * GIB


def test_version_2_counts_every_group_above(tmp_path: Path) -> None:
    files = {
        "a/memory.max": 3 * GIB,
        "a/memory.current": 2 * GIB,
        "a/memory.stat": f"anon 5\ninactive_file {GIB // 2}\nactive_file {GIB // 2}",
        "a/b/memory.max": 4 * GIB,
        "a/b/memory.current": GIB,
    }
    machine(tmp_path, "0::/a/b\n", files)
    found = memory()
    # 2 GiB are left under a (its cache can be dropped), 3 GiB under a/b.
    assert (found.limit_bytes, found.limit_used_bytes) == (3 * GIB, GIB)
    assert found.usable_bytes == 2 * GIB


def test_version_1(tmp_path: Path) -> None:
    files = {
        "memory/job/memory.limit_in_bytes": GIB,
        "memory/job/memory.usage_in_bytes": GIB // 2,
        "memory/job/memory.stat": f"total_inactive_file {GIB // 4}",
        "memory/memory.limit_in_bytes": 9223372036854771712,
    }
    machine(tmp_path, "5:cpu:/\n4:memory:/job\n0::/\n", files)
    found = memory()
    assert (found.limit_bytes, found.limit_used_bytes) == (GIB, GIB // 4)
    assert found.usable_bytes == GIB - GIB // 4


def test_in_a_container_the_mount_is_the_group(tmp_path: Path) -> None:
    machine(tmp_path, "0::/host/path/of/it\n", {"memory.max": GIB, "memory.current": 0})
    assert memory().limit_bytes == GIB


def test_where_nothing_is_known() -> None:
    found = memory()
    assert found.usable_bytes is None
    room = host_room()
    assert (room.name, room.total_bytes, room.free_bytes) == ("memory", None, None)
    room.require(1 << 60, where="here", hint="Do less.")


def test_what_does_not_fit_is_refused() -> None:
    room = Room(name="the memory of cuda:0", total_bytes=4 * GIB, free_bytes=GIB)
    room.require(GIB, where="here", hint="Do less.")
    with pytest.raises(InputError) as caught:
        room.require(2 * GIB, where="here", hint="Do less.")
    assert str(caught.value) == (
        "the work does not fit the memory of cuda:0: at least 2.0 GiB are needed, 1.0 GiB are free (in here). Do less."
    )


def test_folders_that_lie_in_memory(tmp_path: Path) -> None:
    assert not is_memory(tmp_path)
    mounts = tmp_path / "proc" / "self" / "mountinfo"
    mounts.parent.mkdir(parents=True)
    mounts.write_text(
        "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        f"23 22 0:20 / {tmp_path} rw,nosuid - tmpfs tmpfs rw,size=9k\n"
        f"24 23 254:1 /a {tmp_path}/real\\040disk rw master:1 - xfs /dev/vdb rw\n"
    )
    assert is_memory(tmp_path / "not" / "there")
    assert not is_memory(tmp_path / "real disk" / "below")
    assert not is_memory(tmp_path.parent)


def test_folders_on_one_disk_are_told_from_others(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert disk_of(tmp_path / "there") == disk_of(tmp_path / "missing" / "deep")
    assert disk_of(tmp_path) != disk_of(Path("/proc/self"))
    of_this_name = disk_of(tmp_path)
    (tmp_path / "proc" / "sys" / "kernel" / "random").mkdir(parents=True)
    (tmp_path / "proc" / "sys" / "kernel" / "random" / "boot_id").write_text("12-34\n")
    assert disk_of(tmp_path).startswith("12-34 ")
    assert disk_of(tmp_path) != of_this_name
