"""Memory that two processes see leaves nothing behind."""

from __future__ import annotations

import gc
import os
from multiprocessing import Pipe
from pathlib import Path

import pytest

from sagann.hybrid.shared_memory import SharedPiece, received


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system does not list descriptors")
@pytest.mark.parametrize("is_sent", [False, True])
def test_no_descriptor_and_no_name_is_left(is_sent: bool) -> None:
    names, pipes = set(os.listdir("/dev/shm")), Pipe()
    before = os.listdir("/proc/self/fd")
    piece = SharedPiece(100, "accelerator0")
    assert not [name for name in set(os.listdir("/dev/shm")) - names if str(os.getpid()) in name]
    if is_sent:
        piece.send(pipes[0], os.getpid())
        received(pipes[1], 100)
    del piece
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == len(before)
