"""Files of results, and the code and message of a command that fails."""

from __future__ import annotations

import csv
import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from sagann.cli.failure import BAD_INPUT, OUR_FAULT, failure_of
from sagann.cli.result_file import check_target, write_classes, write_rows
from sagann.errors import InputError


def test_classes_of_one_name_get_numbers(tmp_path: Path) -> None:
    write_classes(tmp_path / "p.csv", torch.eye(2), ["vertex", "b"], torch.arange(2), of="vertex", multi_label=True)
    assert (tmp_path / "p.csv").read_text().splitlines()[0] == '"vertex","0:vertex","1:b"'


def test_an_empty_graph(tmp_path: Path) -> None:
    for ending in ("csv", "parquet", "npy"):
        write_classes(
            tmp_path / f"p.{ending}", torch.zeros(0, 2), ["a", "b"], torch.arange(0), of="vertex", multi_label=False
        )
        assert (tmp_path / f"p.{ending}").stat().st_size > 0


@pytest.mark.parametrize("at_once", [1, 1 << 20])
def test_rows_are_written_in_the_order_given(tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.cli.result_file._AT_ONCE_BYTES", at_once)
    order, rows = torch.tensor([2, 0, 1]), torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]])
    for multi_label in (False, True):
        for ending in ("csv", "npy"):
            path = tmp_path / f"{multi_label}.{ending}"
            write_classes(path, rows, ["a", "b"], order, of="vertex", multi_label=multi_label)
    write_rows(tmp_path / "e.npy", rows, order)
    assert np.array_equal(np.load(tmp_path / "e.npy"), rows[order].numpy())
    assert np.array_equal(np.load(tmp_path / "True.npy"), rows[order].numpy())
    assert np.load(tmp_path / "False.npy")["class"].tolist() == [1, 0, 1]
    assert [line.split(",")[:2] for line in (tmp_path / "False.csv").read_text().splitlines()[1:]] == [
        ["0", "1"],
        ["1", "0"],
        ["2", "1"],
    ]
    assert [line[:5] for line in (tmp_path / "True.csv").read_text().splitlines()[1:]] == [
        "0,0.3",
        "1,0.9",
        "2,0.2",
    ]


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "e.npy"
    write_rows(path, torch.zeros(2, 2), torch.arange(2))
    before = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError("4 requested and 1 written")

    monkeypatch.setattr("sagann.cli.result_file.write_npy", fail)
    with pytest.raises(
        InputError, match=r"cannot be written: 4 requested and 1 written \(in .*e\.npy\)\. Free some"
    ):
        write_rows(path, torch.ones(2, 2), torch.arange(2))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["e.npy"]


def test_a_folder_that_may_not_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_target(tmp_path / "curves.png", (".png",), overwrite=False)
    # As for another user, or on a disk that is mounted read-only; root may write anywhere else.
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    with pytest.raises(InputError) as caught:
        check_target(tmp_path / "curves.png", (".png",), overwrite=False, option="--plot")
    assert str(caught.value) == (
        f"file cannot be written: the folder '{tmp_path}' may not be written to (in --plot {tmp_path / 'curves.png'}). "
        "Choose a file in a folder that exists, and that you may write to."
    )


def test_names_that_a_spreadsheet_takes_for_formulas_are_read_again_as_they_are(tmp_path: Path) -> None:
    names = ["=1+1", "@sum(a)", "-x", "+y", 'says "hi"', "a, b", "line\nbreak"]
    write_classes(tmp_path / "found.csv", torch.eye(7), names, torch.arange(7), of="vertex", multi_label=False)
    with (tmp_path / "found.csv").open(newline="") as file:
        assert [row["class_name"] for row in csv.DictReader(file)] == names


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - the caught one has a traceback
        return caught


def test_notes_come_last() -> None:
    error = InputError("a feature is not finite: nan (in row 3)", hint="Remove it.")
    error.add_note("Raised by stage 'load' of epoch 2, batch 7.")
    assert failure_of(error).text == (
        "Error: a feature is not finite: nan (in row 3)\n  hint: Remove it.\n"
        "  note: Raised by stage 'load' of epoch 2, batch 7."
    )


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


@pytest.mark.parametrize("line", ["x + x[:2]", "torch.cat([x, x[:2]], dim=-1)"])
def test_numbers_of_rows_that_differ_are_explained(tmp_path: Path, line: str) -> None:
    file = tmp_path / "net.py"
    file.write_text(f"import torch\nx = torch.ones(5, 3)\n{line}\n")
    with pytest.raises(RuntimeError) as caught:
        exec(compile(file.read_text(), str(file), "exec"), {})
    failure = failure_of(caught.value, user_files={str(file)})
    assert failure.message.endswith(f"(in {file}, line 3, <module>)")
    assert "x[: hop.num_dst]" in failure.hint
