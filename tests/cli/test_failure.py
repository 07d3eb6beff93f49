from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from sagann.cli.failure import BAD_INPUT, INTERRUPTED, OUR_FAULT, failure_of
from sagann.errors import InputError, LayerError, MissingDependencyError


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - the caught one has a traceback
        return caught


def test_two_parts_on_two_lines() -> None:
    failure = failure_of(InputError("seed out of range: 7, at most 3 (in seeds)", hint="Lower it."))
    assert failure.code == BAD_INPUT
    assert failure.text == "Error: seed out of range: 7, at most 3 (in seeds)\n  hint: Lower it."


@pytest.mark.parametrize(
    "error",
    [
        LayerError("a: b (in c)", hint="d"),
        MissingDependencyError("tensorboard", extra="tensorboard", feature="events"),
    ],
)
def test_every_error_of_ours_is_bad_input(error: Exception) -> None:
    assert failure_of(error).code == BAD_INPUT


def test_notes_come_last() -> None:
    error = InputError("a feature is not finite: nan (in row 3)", hint="Remove it.")
    error.add_note("Raised by stage 'load' of epoch 2, batch 7.")
    assert failure_of(error).text == (
        "Error: a feature is not finite: nan (in row 3)\n  hint: Remove it.\n"
        "  note: Raised by stage 'load' of epoch 2, batch 7."
    )


def test_interrupt() -> None:
    assert failure_of(KeyboardInterrupt()).code == INTERRUPTED


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried ..."
        ),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB."),
        RuntimeError("Storage size calculation overflowed with sizes=[4611686018427387904, 8]"),
    ],
)
def test_memory(error: BaseException) -> None:
    failure = failure_of(raised(error))
    assert failure.code == BAD_INPUT
    assert failure.message.startswith("memory ran out: ")
    assert ("in the device" in failure.message) == ("CUDA" in str(error))
    assert failure.hint.startswith("Use --memory, which streams the run")
    assert "--sample" in failure.hint
    assert "--hidden" in failure.hint


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.ENOSPC, errno.EROFS, errno.ENAMETOOLONG])
def test_what_the_system_refuses(number: int) -> None:
    failure = failure_of(OSError(number, os.strerror(number), "/some/where"))
    assert failure.code == BAD_INPUT
    assert failure.message == f"the system refuses: {os.strerror(number)} (in /some/where)"


def test_anything_else_is_our_fault() -> None:
    for error in (ZeroDivisionError("division by zero"), OSError(errno.EIO, "I/O error"), AssertionError()):
        failure = failure_of(raised(error))
        assert failure.code == OUR_FAULT
        assert "a fault of sagann, not of yours" in failure.message
        assert type(error).__name__ in failure.message
        assert "--debug" in failure.hint
        assert "sagann doctor" in failure.hint


def test_our_fault_names_our_line() -> None:
    from sagann.cli.prepare import apply_split

    with pytest.raises(TypeError) as wrong:
        apply_split(json.loads("{}"), "random:0.5,0.2", seed=0)
    assert "(in sagann/cli/prepare.py, line " in failure_of(wrong.value).message


def test_an_error_in_the_users_model_is_the_users(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("def forward():\n    return 1 / 0\n")
    space: dict = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    with pytest.raises(ZeroDivisionError) as caught:
        space["forward"]()
    assert failure_of(caught.value).code == OUR_FAULT
    failure = failure_of(caught.value, user_files={str(file)})
    assert failure.code == BAD_INPUT
    assert failure.message == f"your model failed: ZeroDivisionError: division by zero (in {file}, line 2, forward)"


@pytest.mark.parametrize("line", ["x + x[:2]", "torch.cat([x, x[:2]], dim=-1)"])
def test_numbers_of_rows_that_differ_are_explained(tmp_path: Path, line: str) -> None:
    file = tmp_path / "net.py"
    file.write_text(f"import torch\nx = torch.ones(5, 3)\n{line}\n")
    with pytest.raises(RuntimeError) as caught:
        exec(compile(file.read_text(), str(file), "exec"), {})
    failure = failure_of(caught.value, user_files={str(file)})
    assert failure.message.endswith(f"(in {file}, line 3, <module>)")
    assert "x[: hop.num_dst]" in failure.hint
