"""Workers that stream from one disk: each byte is read by one of them, and where the disk is the limit, an epoch takes half of the time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bench.size.limit import drop_cached
from tests.runtime.workers.disk_driver import NUM_FEATURES, NUM_VERTICES, WAYS
from tests.runtime.workers.processes import run_driver

RATE = 5_000_000
"Bytes a second of the disk."


@pytest.fixture
def slow_disk(tmp_path: Path) -> Iterator[Path]:
    """A control group whose processes read the disk of ``tmp_path`` at a limited rate together."""
    group, probe = Path(f"/sys/fs/cgroup/blkio/sagann-test-{os.getpid()}"), tmp_path / "probe"
    device = os.stat(tmp_path).st_dev
    try:
        group.mkdir()
        (group / "blkio.throttle.read_bps_device").write_text(f"{os.major(device)}:{os.minor(device)} {RATE}")
    except OSError as error:
        pytest.skip(f"no control group slows the disk of {tmp_path}: {error}")
    try:
        probe.write_bytes(bytes(RATE))
        drop_cached(tmp_path)
        began_s = time.perf_counter()
        os.system(f'echo $$ > "{group}/cgroup.procs" && cat "{probe}" > /dev/null')
        if time.perf_counter() - began_s < 0.5:
            pytest.skip(f"the control group does not slow the disk of {tmp_path}")
        probe.unlink()
        yield group
    finally:
        group.rmdir()


@pytest.mark.thorough
def test_two_workers_read_each_byte_once(tmp_path: Path, slow_disk: Path) -> None:
    run_driver("disk_driver", tmp_path, str(slow_disk))
    alone, together = (
        torch.tensor([torch.load(tmp_path / f"{way} {rank}.pt") for rank in range(2)], dtype=torch.float64)
        for way in WAYS
    )
    features_bytes = NUM_VERTICES * NUM_FEATURES * 4
    # Edges and spilled blocks were written a moment ago: the cache still holds them.
    assert (alone[:, 0] / features_bytes - 1).abs().max() < 0.05
    # The system reads ahead for one worker, by up to 8 MiB, what the other one reads.
    assert (together[:, 0].sum() / features_bytes - 1).abs() < 0.05
    assert together[:, 1].max() < 0.6 * alone[:, 1].max()
    torch.testing.assert_close(together[:, 2], alone[:, 2], rtol=1e-5, atol=0)
