"""Which loads wait, and who makes them."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
from torch import Tensor, zeros

from sagann.plan.steps import Block
from sagann.runtime.blocks.host import Parts, RamHost
from sagann.runtime.blocks.transport import Transport


class SlowHost(RamHost):
    """Puts nothing until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_put = threading.Event()

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        assert self.may_put.wait(timeout=240)
        super().put(block, tensors)


class Source:
    """Tells which thread loads."""

    def __init__(self, *, at_hand: bool) -> None:
        self.at_hand = at_hand

    def load(self, block: Block) -> Parts:
        return Parts.of(threading.current_thread().name)

    def is_at_hand(self, block: Block) -> bool:
        return self.at_hand


def block(interval: int) -> Block:
    return Block("value", "h", interval)


def test_what_is_at_hand_is_read_at_once_when_what_leaves_has_left() -> None:
    host = SlowHost()
    transport = Transport(Source(at_hand=True), host, lambda _: 10, None, copies_beside=True)
    here = threading.current_thread().name
    assert transport.load(block(0), []).result() == here
    store = transport.store(block(1), {"": zeros(3)})
    # Its memory is another's only once it is stored.
    waiting = transport.load(block(2), [store])
    host.may_put.set()
    assert waiting.result() != here
    assert transport.load(block(3), [store]).result() == here
    transport.close()


class FailingHost(RamHost):
    """Has no room for one block."""

    def put(self, block: Block, tensors: Mapping[str, Tensor]) -> None:
        if block.interval == 0:
            raise OSError("no room")
        super().put(block, tensors)


def test_what_waits_for_the_last_store_learns_that_one_before_has_failed() -> None:
    transport = Transport(Source(at_hand=True), FailingHost(), lambda _: 10, None, copies_beside=True)
    stores = [transport.store(block(interval), {"": zeros(3)}) for interval in (1, 0, 2)]
    with pytest.raises(OSError, match="no room"):
        stores[-1].result()
    transport.close()
