"""What all tests share: one thread, patient properties, and where the exchange datasets are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# The first example of a property pays for Numba's compilation, or for importing PyG.
settings.register_profile("compiles", deadline=None, max_examples=60)
settings.load_profile("compiles")

# Without a device, Triton's kernels run in its interpreter. It must know before it is first imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Graphs of a few edges gain nothing from threads, and waiting for them is slow on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of exchange datasets: $SAGANN_DATA, or ../shared/data beside the checkout."""
    default = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("SAGANN_DATA", default))
    if not folder.is_dir():
        pytest.skip("the exchange datasets are not here: set SAGANN_DATA to their folder")
    return folder
