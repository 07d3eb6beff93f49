import pytest
import torch
from hypothesis import settings

# The first example of a property pays for Numba's compilation, or for importing PyG.
settings.register_profile("compiles", deadline=None, max_examples=60)
settings.load_profile("compiles")


@pytest.fixture(autouse=True, scope="package")
def one_torch_thread():
    """Graphs of a few edges gain nothing from torch's threads, and waiting for them is slow on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
