"""Losses, gradients, logits and embeddings of 2 and 3 workers equal those of one, for every model."""

from functools import partial

import pytest
import torch

from tests.runtime.workers.exactness_driver import AGAIN, Numbers, cases
from tests.runtime.workers.processes import run_driver
from tests.shared import SharedFolder
from tests.tolerances import largest
from tests.zoo import DISTINCT

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(900)]
RELATIVE = {torch.float32: 1e-5, torch.float64: 1e-11}
NAMES = [f"{name}, {dtype}" for dtype in RELATIVE for name, *_ in cases()]


@pytest.fixture(scope="module")
def numbers(shared_folder: SharedFolder) -> dict[str, dict[str, Numbers]]:
    folder = shared_folder("exactness", partial(run_driver, "exactness_driver"))
    return {file.stem: torch.load(file) for file in sorted(folder.iterdir())}


def test_every_message_program_is_a_case() -> None:
    assert set(DISTINCT) < {name for name, *_ in cases()}


@pytest.mark.parametrize("name", NAMES)
def test_several_workers_compute_what_one_computes(numbers: dict[str, dict[str, Numbers]], name: str) -> None:
    expected = numbers["alone"][name]
    relative = RELATIVE[expected["loss 0"].dtype]
    # Gradients of an epoch are measured by the largest of them.
    scale = {
        key: max(1.0, largest(*(expected[other] for other in expected if other.split()[-1] == key.split()[-1])))
        for key in expected
    }
    compared = {run: found[name] for run, found in numbers.items() if name in found and run != "alone"}
    # Two workers have computed it in float32, three in float64.
    assert len(compared) >= {torch.float32: 2, torch.float64: 3}[expected["loss 0"].dtype]
    for run, found in compared.items():
        assert list(found) == list(expected), run
        for key, value in found.items():
            torch.testing.assert_close(
                value,
                expected[key],
                rtol=relative,
                atol=relative * scale[key],
                msg=lambda text, at=(run, key): f"{at}: {text}",
            )


@pytest.mark.parametrize("name", NAMES)
def test_workers_have_the_same_bits_in_every_run(numbers: dict[str, dict[str, Numbers]], name: str) -> None:
    if name.rpartition(",")[0] in AGAIN and name.endswith("float32"):
        assert sum(run.startswith("2, again") and name in found for run, found in numbers.items()) == 2
    for size in (2, 3):
        same = [found[name] for run, found in numbers.items() if run.startswith(f"{size}") and name in found]
        for other in same[1:]:
            for key, value in same[0].items():
                assert torch.equal(value, other[key]), (size, key)
