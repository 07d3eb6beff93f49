"""Memory that two processes see: its bytes at the other end of a pipe, what is left of it, and a system that has none left."""

from __future__ import annotations

import errno
import gc
import os
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from sagann.errors import InputError
from sagann.hybrid.shared_memory import SharedPiece, received


def test_both_ends_see_what_either_writes() -> None:
    ours, theirs = Pipe()
    piece = SharedPiece(5000, "accelerator0")
    piece.send(ours, os.getpid())
    there = received(theirs, 5000)
    piece.bytes[4999] = 7
    there[0] = 9
    assert (there[4999], piece.bytes[0]) == (7, 9)
    del piece
    gc.collect()
    # Whoever has it keeps it.
    assert there[4999] == 7
    assert there.dtype == torch.uint8


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


def test_a_full_system_is_an_error_and_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(
        InputError, match=r"is full: 100 B wanted, .* free in .*No space left.*trainer 'accelerator0'"
    ):
        SharedPiece(100, "accelerator0")
