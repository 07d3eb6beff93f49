"""What all tests share: their order, one thread, poisoned memory, verified plans, hard limits, a small disk, the exchange datasets' folder."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from sagann.kernels.memory import Pool
from sagann.plan.epoch import MEMORY_POLICIES
from sagann.plan.spec import verify
from sagann.plan.steps import Plan, Step
from tests.cover import mark_the_rest
from tests.forks import in_group
from tests.shared import Fill, SharedFolder, filled_once, shared_root

# Examples of a property in `make test` and in `make thorough`. The first one pays for Numba's compilation, or for importing PyG.
settings.register_profile("every change", deadline=None, max_examples=10)
settings.register_profile("thorough", deadline=None, max_examples=60)
settings.load_profile("every change")

_CGROUPS = Path("/sys/fs/cgroup/memory")

# Objects, collections of them, and collections of what they leave, after which the garbage collector looks further.
_YOUNG_OBJECTS, _MIDDLE_COLLECTIONS, _FULL_COLLECTIONS = 10_000, 20, 20

# Without a device, Triton's kernels run in its interpreter. It must know before it is first imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A job in a shell's background ignores Ctrl-C, and so do the programs that it starts. The tests interrupt some of them.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Graphs of a few edges gain nothing from threads, and waiting for them is slow on a busy machine.
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options of our own."""
    parser.addoption(
        "--python", default=sys.executable, metavar="FILE", help="interpreter of tests/cli/test_every_command.py"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Try more examples where thorough tests run."""
    if "not thorough" not in config.option.markexpr:
        settings.load_profile("thorough")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave cases to `make thorough`, and run files with slow tests first: one that starts last leaves other processes idle."""
    mark_the_rest(items)
    with_slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in with_slow)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Look for no garbage while modules are loaded."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage less often, and not among what is loaded now: else it takes a seventh of the time of tests that compile."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(_YOUNG_OBJECTS, _MIDDLE_COLLECTIONS, _FULL_COLLECTIONS)


@pytest.fixture(autouse=True)
def poisoned_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill the pool's new tensors with NaN, or the largest integer, so that a kernel that leaves a number unwritten is seen."""
    uninitialised = Pool.empty

    def poisoned(pool: Pool, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        tensor = uninitialised(pool, shape, dtype)
        if dtype == torch.bool:
            return tensor.fill_(True)
        return tensor.fill_(torch.nan if dtype.is_floating_point else torch.iinfo(dtype).max)

    monkeypatch.setattr(Pool, "empty", poisoned)


@pytest.fixture(autouse=True)
def verified_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold every plan that a test makes to the specification of plans."""

    def verified(place: Callable[..., Plan], steps: Sequence[Step], **given: Any) -> Plan:
        plan = place(steps, **given)
        verify(plan, steps)
        return plan

    for name, place in MEMORY_POLICIES.items():
        monkeypatch.setitem(MEMORY_POLICIES, name, partial(verified, place))


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets PyTorch's number of threads for the rest of a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of exchange datasets: $SAGANN_DATA, or ../shared/data beside the checkout."""
    default = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("SAGANN_DATA", default))
    if not folder.is_dir():
        pytest.skip("the exchange datasets are not here: set SAGANN_DATA to their folder")
    return folder


@pytest.fixture(scope="session")
def shared_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SharedFolder:
    """Gives the folder of a name, which one of pytest's processes has filled for all (tests/shared.py)."""
    root = shared_root(request.config, tmp_path_factory.getbasetemp())

    def folder(name: str, fill: Fill) -> Path:
        return filled_once(root, name, fill)

    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.fixture
def limited() -> Iterator[Callable[[int], Sequence[str]]]:
    """Sets a hard limit of so many bytes; gives what stands before the commands of programs that have it, all together."""
    if not os.access(_CGROUPS, os.W_OK) or not (_CGROUPS / "memory.limit_in_bytes").exists():
        pytest.skip(f"memory control groups are not writable ({_CGROUPS})")
    group = _CGROUPS / f"sagann-test-{uuid.uuid4().hex}"
    group.mkdir()

    def limit(num_bytes: int) -> Sequence[str]:
        (group / "memory.limit_in_bytes").write_text(str(num_bytes))
        return in_group(group / "cgroup.procs")

    yield limit
    group.rmdir()
