"""Losses, gradients, logits and embeddings of 2 and 3 workers equal those of one, for every model."""

from collections.abc import Callable
from functools import cache

import pytest
import torch

from tests.runtime.workers.exactness_driver import AGAIN, Numbers, cases
from tests.runtime.workers.processes import run_driver
from tests.shared import SharedFolder
from tests.tolerances import largest
from tests.zoo import DISTINCT

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(900)]
RELATIVE = {torch.float32: 1e-5, torch.float64: 1e-11}
NAMES = [name for name, *_ in cases()]
Numbered = Callable[[torch.dtype], dict[str, dict[str, Numbers]]]
"Gives the numbers of all runs in a type, by run and case."
of_every_case = pytest.mark.parametrize("name", NAMES)
# Two workers compute in float32, three in float64. Streamed parts of three workers are tested by test_streamed_part.py.
of_every_type = pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.thorough)]
)


@pytest.fixture(scope="module")
def numbers(shared_folder: SharedFolder) -> Numbered:
    @cache
    def of(dtype: torch.dtype) -> dict[str, dict[str, Numbers]]:
        name = str(dtype).removeprefix("torch.")
        folder = shared_folder(f"exactness {name}", lambda folder: run_driver("exactness_driver", folder, name))
        return {file.stem: torch.load(file) for file in sorted(folder.iterdir())}

    return of


def test_every_message_program_is_a_case() -> None:
    assert set(DISTINCT) < {name for name, *_ in cases()}


@of_every_type
@of_every_case
def test_several_workers_compute_what_one_computes(numbers: Numbered, name: str, dtype: torch.dtype) -> None:
    expected = numbers(dtype)["alone"][name]
    relative = RELATIVE[dtype]
    assert expected["loss 0"].dtype == dtype
    # Gradients of an epoch are measured by the largest of them.
    scale = {
        key: max(1.0, largest(*(expected[other] for other in expected if other.split()[-1] == key.split()[-1])))
        for key in expected
    }
    compared = {run: found[name] for run, found in numbers(dtype).items() if name in found and run != "alone"}
    # Two workers have computed it in float32, three in float64.
    assert len(compared) >= {torch.float32: 2, torch.float64: 3}[dtype]
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


@of_every_type
@of_every_case
def test_workers_have_the_same_bits_in_every_run(numbers: Numbered, name: str, dtype: torch.dtype) -> None:
    if name in AGAIN and dtype == torch.float32:
        assert sum(run.startswith("2, again") and name in found for run, found in numbers(dtype).items()) == 2
    for size in (2, 3):
        same = [found[name] for run, found in numbers(dtype).items() if run.startswith(f"{size}") and name in found]
        for other in same[1:]:
            for key, value in same[0].items():
                assert torch.equal(value, other[key]), (size, key)
