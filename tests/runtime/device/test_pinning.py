"""Pinning in pieces, with a driver that may refuse any; and pinned memory that is reused once the copies that touch it are done."""

from __future__ import annotations

import gc
import re
import threading
from threading import Thread
from weakref import ref

import pytest
import torch
from torch import Tensor

from sagann.runtime.device.pinning import Pinned, PinningError, pin_in_pieces
from sagann.runtime.device.streams import PinnedPool
from tests.runtime.device.drivers import SimulatedDevices
from tests.runtime.device.late_streams import LateMark, LateStreams

PAGE = 4096


def memory_of(num_bytes: int, first_byte: int = 0) -> Tensor:
    """Memory that begins so many bytes after the beginning of a page."""
    memory = torch.zeros(num_bytes + 2 * PAGE, dtype=torch.uint8)
    skipped = -memory.data_ptr() % PAGE + first_byte
    return memory[skipped : skipped + num_bytes]


@pytest.mark.parametrize("first_byte", [0, PAGE - 1])
@pytest.mark.parametrize("num_bytes", [1, 3 * PAGE, 10 * PAGE + 17])
def test_pieces_cover_the_memory_and_share_no_page(num_bytes: int, first_byte: int) -> None:
    driver, memory = SimulatedDevices(), memory_of(num_bytes, first_byte)
    pinned = pin_in_pieces(memory, driver, piece_bytes=3 * PAGE)
    assert len(driver.registered) >= num_bytes // (3 * PAGE)
    end = memory.data_ptr()
    for begin, size in driver.registered:
        assert begin == end
        assert size <= 3 * PAGE
        end = begin + size
    assert end == memory.data_ptr() + num_bytes
    assert all(driver.is_pinned(memory[at:]) for at in range(0, num_bytes, 1000))
    del pinned
    assert not driver.pinned


@pytest.mark.parametrize("piece", [0, 3])
def test_a_refused_piece_leaves_nothing_pinned(piece: int) -> None:
    driver = SimulatedDevices(refuse_at=piece)
    with pytest.raises(PinningError) as caught:
        pin_in_pieces(memory_of(8 * PAGE), driver, piece_bytes=2 * PAGE)
    assert str(caught.value) == (
        f"host memory cannot be pinned: piece {piece + 1} of 4, 8.0 KiB of 32.0 KiB: the driver's error 2 (in pinning in pieces). "
        "Raise the limit of locked memory (ulimit -l), or free memory."
    )
    assert not driver.pinned
    assert len(driver.registered) == piece + 1


def test_success_is_not_believed() -> None:
    driver = SimulatedDevices(forgets=True)
    with pytest.raises(PinningError, match="the driver reports success, but the memory is not pinned"):
        pin_in_pieces(memory_of(PAGE), driver)


def test_a_failure_to_unpin_is_told() -> None:
    driver = SimulatedDevices(refuse_at=2, unpin_code=7)
    with pytest.raises(
        PinningError, match=re.escape("error 2; unpinning earlier pieces failed with errors 7, 7 (in")
    ):
        pin_in_pieces(memory_of(8 * PAGE), driver, piece_bytes=2 * PAGE)
    driver = SimulatedDevices(unpin_code=7)
    pinned = pin_in_pieces(memory_of(2 * PAGE), driver, piece_bytes=PAGE)
    with pytest.warns(
        RuntimeWarning, match=r"2 of 2 pieces of 8.0 KiB of host memory stay pinned: the driver's errors 7, 7"
    ):
        del pinned


def test_memory_is_unpinned_with_its_owner() -> None:
    driver = SimulatedDevices()
    pinned = pin_in_pieces(memory_of(3 * PAGE), driver)
    assert (bool(driver.pinned), driver.finished) == (True, 0)
    del pinned
    gc.collect()
    # Not before all devices are done with it.
    assert (driver.pinned, driver.finished) == ({}, 1)


def test_memory_that_is_pinned_again_while_it_is_unpinned() -> None:
    found: list[Pinned] = []

    class Meeting(SimulatedDevices):
        """Unpins while another thread pins."""

        def unregister(self, address: int) -> int:
            if not found and not others:
                others.append(Thread(target=lambda: found.append(pin_in_pieces(memory, self))))
                others[0].start()
                others[0].join(timeout=0.2)
            return super().unregister(address)

    others: list[Thread] = []
    driver, memory = Meeting(), memory_of(3 * PAGE)
    pin_in_pieces(memory, driver)
    others[0].join()
    assert len(driver.pinned) == 1
    found.clear()
    assert not driver.pinned


def test_memory_that_several_pin_stays_pinned_until_the_last_one_ends() -> None:
    driver, memory = SimulatedDevices(), memory_of(8 * PAGE)
    pins = [pin_in_pieces(memory, driver, piece_bytes=2 * PAGE) for _ in range(3)]
    while pins:
        assert len(driver.registered) == len(driver.pinned) == 4
        pins.pop()
    assert (driver.pinned, driver.finished) == ({}, 1)
    pin_in_pieces(memory, driver, piece_bytes=2 * PAGE)
    assert len(driver.registered) == 8


def test_memory_that_is_pinned_just_as_its_last_holder_ends_is_shared() -> None:
    driver, memory = SimulatedDevices(), memory_of(3 * PAGE)
    found: list[Pinned] = []
    pinned = pin_in_pieces(memory, driver)
    # Weak references end before finalizers run: in the meantime another thread may pin.
    meanwhile = ref(pinned, lambda _: found.append(pin_in_pieces(memory, driver)))
    del pinned
    assert (meanwhile(), len(driver.registered), len(driver.pinned)) == (None, 1, 1)
    found.clear()
    assert not driver.pinned


def test_a_piece_is_free_once_its_copy_is_done_and_fits_somewhat_less() -> None:
    streams = LateStreams()
    pool = PinnedPool(streams, most_times=1.5)
    piece, into = pool.take(12 * 4096), streams.empty(8)
    streams.wait("load", streams.mark("compute"))
    with streams.on("load"):
        streams.copy(into, piece[:8])
        mark = streams.mark("load")
    pool.give(piece, mark)
    second = pool.take(9 * 4096)
    assert second.data_ptr() != piece.data_ptr()
    streams.finish(mark)
    assert pool.take(9 * 4096).data_ptr() == piece.data_ptr()
    pool.give(piece)
    # A third of it would be wasted.
    assert len(pool.take(7 * 4096)) == 7 * 4096


def test_within_a_limit_the_oldest_piece_is_waited_for() -> None:
    streams = LateStreams()
    pool = PinnedPool(streams, most_bytes=3 * 4096)
    source, device = torch.ones(4096, dtype=torch.uint8), [streams.empty(4096) for _ in range(4)]
    streams.wait("load", streams.mark("compute"))
    for number, into in enumerate(device):
        piece = pool.take(4096)
        piece.copy_(source * number)
        with streams.on("load"):
            streams.copy(into, piece)
        pool.give(piece, streams.mark("load"))
    # Its copy had to be made before the fourth piece could be had.
    assert [int(into[0]) for into in device] == [0, 0xFF, 0xFF, 0xFF]
    streams.finish(streams.mark("load"))
    assert [int(into[0]) for into in device] == [0, 1, 2, 3]
    assert streams.pinned_bytes == 3 * 4096


def test_one_piece_alone_may_be_larger_than_the_limit_and_others_wait_until_it_is_back() -> None:
    streams = LateStreams()
    pool = PinnedPool(streams, most_bytes=4096)
    large = pool.take(10 * 4096)
    got: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: got.append(pool.take(4096)))
    thread.start()
    thread.join(0.05)
    assert not got
    pool.give(large)
    thread.join(10)
    assert len(got[0]) == 4096


def test_a_piece_whose_copy_fails_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(mark: LateMark) -> None:
        raise RuntimeError("the device failed")

    streams = LateStreams()
    pool = PinnedPool(streams, most_bytes=4096)
    piece, into = pool.take(4096), streams.empty(4096)
    streams.wait("load", streams.mark("compute"))
    with streams.on("load"):
        streams.copy(into, piece)
    pool.give(piece, streams.mark("load"))
    with monkeypatch.context() as patches:
        patches.setattr(streams, "finish", failing)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="the device failed"):
                pool.take(4096)
    assert pool.take(4096).data_ptr() == piece.data_ptr()
