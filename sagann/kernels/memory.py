"""Pool: memory for large results on the CPU, reused when a tensor is freed.

A layer's result is tens of megabytes and lives for a part of an epoch. The C library returns blocks of that size to the system,
which has to make and clear every page again for the next result. The pool keeps blocks for the next result of about the same
size. A block comes back to the pool when its tensor is freed.

Used and free blocks together never exceed the most bytes that were in use at once. If no free block has the right size, a tensor
takes a larger free block, up to 8 times larger. A new block would exceed the bound, and evict free blocks. If no larger block
fits, the free blocks that are longest unused are evicted. So a block may be several times larger than its tensor.
"""

from __future__ import annotations

import math
import mmap
import os
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

SMALLEST_BYTES = 1 << 20
"Smaller tensors come from PyTorch."
_HUGE_PAGE_BYTES = 2 << 20
# Sizes are rounded up to a multiple of an eighth of the power of two below.
_STEPS = 8
# A tensor is made in a free block of at most this many times its size.
_MOST_TIMES = 8

_NUMPY = {torch.float64: np.float64, torch.float32: np.float32, torch.int64: np.int64, torch.int32: np.int32}


class Pool:
    """Blocks of memory by size, used and free. Any thread may allocate and free tensors."""

    def __init__(self) -> None:
        self.enabled = hasattr(mmap, "MADV_HUGEPAGE")
        "Whether new tensors come from the pool; only on Linux."
        # Free blocks are evicted while used and free bytes together exceed the least limit.
        self._limits: list[int] = []
        self._lock = Lock()
        # Finalizers fill the queue and do no more, because they may run in the middle of any method of this class.
        self._returned: deque[_Block] = deque()
        self._free: OrderedDict[int, _Block] = OrderedDict()
        self._used_bytes = self._free_bytes = self._most_used_bytes = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor on the CPU, as of ``torch.empty``; its storage cannot be resized.

        Tensors of less than :data:`SMALLEST_BYTES`, and of types without a NumPy twin, are PyTorch's own.
        """
        count = math.prod(shape)
        num_bytes = count * dtype.itemsize
        if not self.enabled or num_bytes < SMALLEST_BYTES or dtype not in _NUMPY:
            return torch.empty(shape, dtype=dtype, device="cpu")
        try:
            block = self._take(_rounded(num_bytes))
        except OSError:
            # PyTorch raises its own error if there is no memory.
            return torch.empty(shape, dtype=dtype, device="cpu")
        array = np.frombuffer(block.memory, _NUMPY[dtype], count, block.offset).reshape(shape)
        finalize(array, self._put_back, block).atexit = False
        return torch.from_numpy(array)

    @property
    def free_bytes(self) -> int:
        """Bytes of free blocks."""
        with self._lock:
            self._settle()
            return self._free_bytes

    def release(self) -> None:
        """Return all free blocks to the system, and forget the most bytes that were in use."""
        with self._lock:
            self._settle()
            self._free.clear()
            self._free_bytes = 0
            self._most_used_bytes = self._used_bytes

    def shrink(self, num_bytes: int) -> None:
        """Return free blocks to the system, the longest unused first, until free blocks take at most ``num_bytes``."""
        with self._lock:
            self._settle()
            while self._free_bytes > num_bytes:
                self._forget_oldest()

    @contextmanager
    def limited(self, num_bytes: int) -> Iterator[None]:
        """Inside the ``with`` block, a new block evicts free blocks while all blocks together exceed ``num_bytes``.

        No tensor gets a larger block than it needs, because a budget counts every byte.
        """
        self._limits.append(num_bytes)
        try:
            yield
        finally:
            self._limits.remove(num_bytes)

    def close(self) -> None:
        """Leave new tensors to PyTorch, and return blocks to the system when they are free."""
        self.enabled = False
        self.release()

    def unlock(self) -> None:
        """Make a new lock."""
        self._lock = Lock()

    def _put_back(self, block: _Block) -> None:
        if self.enabled:
            self._returned.append(block)

    def _take(self, num_bytes: int) -> _Block:
        with self._lock:
            self._settle()
            block = self._reused(num_bytes)
            if block is None:
                used = self._used_bytes + num_bytes
                limit = min([max(self._most_used_bytes, used), *self._limits])
                while self._free and used + self._free_bytes > limit:
                    self._forget_oldest()
                block = self._made(num_bytes)
            self._used_bytes += block.num_bytes
            self._most_used_bytes = max(self._most_used_bytes, self._used_bytes)
            return block

    def _reused(self, num_bytes: int) -> _Block | None:
        """The free block of that size used last, which caches may still hold; or the smallest larger block."""
        for key in reversed(self._free):
            if self._free[key].num_bytes == num_bytes:
                return self._unfree(key)
        room = self._most_used_bytes - self._used_bytes
        # Where there is room, a new block evicts no other.
        if self._limits or num_bytes + self._free_bytes <= room:
            return None
        largest = min(_MOST_TIMES * num_bytes, room)
        fitting = [
            (block.num_bytes, key) for key, block in self._free.items() if num_bytes < block.num_bytes <= largest
        ]
        return self._unfree(min(fitting)[1]) if fitting else None

    def _made(self, num_bytes: int) -> _Block:
        """A new block. Free blocks are evicted where the system has no more memory."""
        while True:
            try:
                return _Block(num_bytes)
            except OSError:
                if not self._free:
                    raise
                self._forget_oldest()

    def _unfree(self, key: int) -> _Block:
        block = self._free.pop(key)
        self._free_bytes -= block.num_bytes
        return block

    def _forget_oldest(self) -> None:
        self._unfree(next(iter(self._free)))

    def _settle(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            self._used_bytes -= block.num_bytes
            self._free[id(block)] = block
            self._free_bytes += block.num_bytes


class _Block:
    """Private memory of the process, on huge pages where the system has them."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.memory = mmap.mmap(-1, num_bytes + _HUGE_PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = np.frombuffer(self.memory, np.uint8).ctypes.data
        self.offset = -address % _HUGE_PAGE_BYTES
        # The rest would take another huge page. A system without huge pages refuses.
        whole = num_bytes // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
        if whole:
            with suppress(OSError):
                self.memory.madvise(mmap.MADV_HUGEPAGE, self.offset, whole)


def allocated_bytes(num_bytes: int) -> int:
    """Most bytes of memory that a tensor of so many bytes takes: the pool rounds up."""
    return num_bytes if num_bytes < SMALLEST_BYTES else _rounded(num_bytes)


def _rounded(num_bytes: int) -> int:
    step = max(1, (1 << (num_bytes.bit_length() - 1)) // _STEPS)
    return -(-num_bytes // step) * step


POOL = Pool()
# A child process has no thread that would release a lock held during the fork.
os.register_at_fork(after_in_child=POOL.unlock)


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """An uninitialised tensor; on the CPU, from the pool of this process."""
    if torch.device(device).type == "cpu":
        return POOL.empty(shape, dtype)
    return torch.empty(shape, dtype=dtype, device=device)
