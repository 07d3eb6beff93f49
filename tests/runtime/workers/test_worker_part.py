"""Losses, gradients, logits and embeddings of 2 and 3 workers equal those of one, for every model."""

import os
import subprocess
import sys

import pytest
import torch

from sagann.nn import MODELS
from tests.runtime.workers.exactness_driver import Numbers, cases
from tests.tolerances import largest

pytestmark = pytest.mark.distributed
RELATIVE = {torch.float32: 1e-5, torch.float64: 1e-11}
NAMES = [f"{name}, {dtype}" for dtype in RELATIVE for name, *_ in cases()]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Numbers]]:
    folder = tmp_path_factory.mktemp("exactness")
    command = [sys.executable, "-m", "tests.runtime.workers.exactness_driver", str(folder)]
    subprocess.run(command, check=True, timeout=280, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return {file.stem: torch.load(file) for file in sorted(folder.iterdir())}


def test_every_model_is_a_case() -> None:
    assert set(MODELS) < {name for name, *_ in cases()}


@pytest.mark.parametrize("name", NAMES)
def test_several_workers_compute_what_one_computes(numbers: dict[str, dict[str, Numbers]], name: str) -> None:
    expected = numbers["1"][name]
    assert len(expected) > 6
    # Losses of the first epoch and gradients, and what follows from them.
    scale = {
        key: largest(*(expected[other] for other in expected if other.split()[-1] == key.split()[-1]))
        for key in expected
    }
    for run, found in numbers.items():
        assert list(found[name]) == list(expected), run
        for key, value in found[name].items():
            relative = RELATIVE[expected["loss 0"].dtype]
            most = relative * max(scale[key], 1.0)
            torch.testing.assert_close(
                value, expected[key], rtol=relative, atol=most, msg=lambda text, at=(run, key): f"{at}: {text}"
            )


@pytest.mark.parametrize("name", NAMES)
def test_workers_have_the_same_bits_in_every_run(numbers: dict[str, dict[str, Numbers]], name: str) -> None:
    for runs in (["2-0-0", "2-0-1", "2-1-0", "2-1-1"], ["3-0-0", "3-0-1", "3-0-2"]):
        for other in runs[1:]:
            for key, value in numbers[runs[0]][name].items():
                assert torch.equal(value, numbers[other][name][key]), (other, key)
