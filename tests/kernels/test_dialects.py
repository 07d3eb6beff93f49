"""Dialects, packed arrays and seeds; the pool of large tensors: blocks come back, are never shared, and are bounded."""

from __future__ import annotations

import os
import sys
import threading

import pytest
import torch

from sagann.errors import InputError
from sagann.kernels import edge
from sagann.kernels.edge import cpu, naive
from sagann.kernels.memory import SMALLEST_BYTES, Pool, empty
from sagann.kernels.packed import Layout, packed_bytes
from sagann.kernels.seeds import NUM_SEEDS, drawn_seed, seeded
from tests.forks import run_fresh


@pytest.mark.parametrize(
    ("device", "name", "module"), [("cpu", "auto", cpu), ("cpu", "naive", naive), ("mps", "auto", naive)]
)
def test_auto_takes_the_fastest(device: str, name: str, module: object) -> None:
    assert edge.dialect_for(device, name) is module


@pytest.mark.parametrize(("device", "name"), [("cuda", "cpu"), ("mps", "gpu")])
def test_a_dialect_of_another_device_is_refused(device: str, name: str) -> None:
    with pytest.raises(InputError, match=rf"dialect '{name}' read .* device of type '{device}' \(in dialect\)"):
        edge.dialect_for(device, name)


def test_views_are_apart_aligned_and_of_their_form() -> None:
    tensors = {"a": torch.zeros(5, 3), "b": torch.zeros(0, 2), "c": torch.zeros(7, dtype=torch.int16)}
    layout = Layout(tensors)
    views = layout.views(layout.allocate())
    for number, (name, view) in enumerate(views.items()):
        assert (view.shape, view.dtype) == (tensors[name].shape, tensors[name].dtype)
        assert layout.offset(name) % 64 == 0
        view.fill_(number)
    assert all(bool((view == number).all()) for number, view in enumerate(views.values()))
    assert layout.num_bytes == packed_bytes(tensor.nbytes for tensor in tensors.values()) == 128


CPU = torch.device("cpu")


def test_a_seeded_block_repeats_and_leaves_the_generator_as_it_was() -> None:
    torch.manual_seed(3)
    expected = [drawn_seed(), drawn_seed()]
    torch.manual_seed(3)
    first = drawn_seed()
    inside = []
    for seed in (5, 5, 5 + NUM_SEEDS):
        with seeded(seed, CPU):
            inside.append(torch.rand(4))
    assert [first, drawn_seed()] == expected
    assert torch.equal(inside[0], inside[1])
    assert torch.equal(inside[0], inside[2])


ROWS = SMALLEST_BYTES // 64 * 2
"Rows of 16 float32 that make 2 MiB."


def block(pool: Pool, size: int = 1) -> torch.Tensor:
    return pool.empty((size * ROWS, 16), torch.float32)


def held_bytes(pool: Pool) -> int:
    """Of blocks in use and free."""
    # Counts what has come back, and gives nothing to the system.
    pool.shrink(sys.maxsize)
    return pool._used_bytes + pool._free_bytes


def test_every_test_sees_poisoned_memory() -> None:
    for shape in ((10,), (ROWS, 16)):
        assert empty(shape, torch.float32).isnan().all()
        assert empty(shape, torch.int32).eq(2**31 - 1).all()


def test_a_freed_block_is_used_again() -> None:
    pool = Pool()
    first = block(pool).fill_(1)
    address = first.data_ptr()
    assert block(pool).data_ptr() != address
    part = first[5:, 3]
    del first
    # A view is enough to keep it.
    assert block(pool).data_ptr() != address
    assert part.eq(1).all()
    del part
    again = {block(pool).data_ptr() for _ in range(3)}
    assert address in again


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64])
def test_tensors_are_ordinary_ones(dtype: torch.dtype) -> None:
    x = Pool().empty((ROWS, 3, 8), dtype)
    assert x.shape == (ROWS, 3, 8)
    assert x.dtype == dtype
    assert x.is_contiguous()
    # What a function returns may be changed in place only if it is no view.
    assert not x._is_view()
    assert x.zero_().add_(2).sum() == 2 * x.numel()


def test_blocks_held_are_no_more_than_blocks_once_in_use() -> None:
    pool, most = Pool(), 0
    kept: list[torch.Tensor] = []
    for size in (4, 4, -2, 1, 1, 4, 2, -3, 3, 1, 8, -2, 1, 1, 1, 5):
        kept = kept[-size:] if size < 0 else [*kept, block(pool, size)]
        held = held_bytes(pool)
        most = max(most, pool._used_bytes)
        assert held <= most
        assert pool._used_bytes <= 8 * sum(each.nbytes for each in kept)


def test_under_a_limit_no_block_is_larger_than_what_is_on_it() -> None:
    pool = Pool()
    addresses = {each.data_ptr() for each in [block(pool, 4), block(pool, 4)]}
    with pool.limited(10 * SMALLEST_BYTES * 2):
        assert block(pool).data_ptr() not in addresses


def test_released_memory_goes_back_to_the_system() -> None:
    def resident_bytes() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    if not os.path.exists("/proc/self/statm"):
        pytest.skip("the system does not say how much memory the process holds")
    pool, before = Pool(), resident_bytes()
    if not pool.enabled:
        pytest.skip("there is no pool on this system")
    tensors = [block(pool, 16).fill_(1) for _ in range(4)]
    size = sum(tensor.nbytes for tensor in tensors)
    del tensors
    assert resident_bytes() - before > 0.9 * size
    pool.release()
    assert resident_bytes() - before < 0.2 * size


SHORT_OF_ADDRESSES = """
import resource
import torch
from sagann.kernels import memory
from sagann.kernels.memory import Pool

def made(pool, num_mib):
    return pool.empty((num_mib << 18,), torch.int32)

memory._MOST_TIMES = 1
pool = Pool()
blocks = [made(pool, 64) for _ in range(4)]
del blocks
with open("/proc/self/statm") as file:
    taken = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken - (96 << 20), -1))
large = made(pool, 72)
assert pool._used_bytes == 72 << 20 and pool._free_bytes == 64 << 20, (pool._used_bytes, pool._free_bytes)
try:
    made(pool, 1024)
except RuntimeError as error:
    assert "allocate memory" in str(error), error
else:
    raise AssertionError("the limit holds nothing back")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much of the address space is taken")
def test_free_blocks_make_room_where_the_system_has_no_more() -> None:
    # Of the four free blocks two go in any case, for no more was ever in use, and that is not enough.
    run_fresh(SHORT_OF_ADDRESSES)


def test_threads_never_get_the_same_block() -> None:
    pool, wrong = Pool(), []

    def work(number: int) -> None:
        for size in (1, 2, 1, 3) * 20:
            x = block(pool, size).fill_(number)
            if not x.eq(number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_may_ask_though_a_thread_of_its_parent_was_asking() -> None:
    program = """
import os
from sagann.kernels import memory
from tests.forks import fork

with memory.POOL._lock:
    child = fork()
    if child == 0:
        free = memory.POOL._lock.acquire(timeout=60)
        os._exit(0 if free else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    run_fresh(program)
