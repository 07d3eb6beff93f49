"""The circuits of a design as Verilog, and what they take of an FPGA: ``python -m sagann.hardware``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from sagann.errors import InputError, SagannError
from sagann.hardware.design import KernelDesign
from sagann.hardware.resources import ALVEO_U250, Resources, total
from sagann.hardware.yosys import area_of, verilog_of


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sagann.hardware", description="Generate hardware kernels.")
    parser.add_argument("--verilog", metavar="DIR", type=Path, help="folder for accelerator.v")
    parser.add_argument("--area", action="store_true", help="what they take of an Alveo U250, by synthesis")
    parser.add_argument(
        "--kernel",
        default="",
        metavar="NAME=VALUE,...",
        help="other sizes than the paper's, as scatter_pes=4,lanes=8",
    )
    arguments = parser.parse_args(given)
    try:
        if arguments.verilog is None and not arguments.area:
            raise InputError(
                "nothing to do: neither --verilog nor --area is given", hint="Give a folder with --verilog DIR."
            )
        design = KernelDesign().with_sizes(arguments.kernel, where="--kernel")
        if arguments.verilog is not None:
            _write(design, arguments.verilog)
        if arguments.area:
            sys.stdout.write("".join(f"{line}\n" for line in _table(area_of(design))))
    except SagannError as error:
        sys.stderr.write(f"Error: {error.message}\n  hint: {error.hint}\n")
        return 2
    return 0


def _write(design: KernelDesign, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "accelerator.v").write_text(verilog_of(design))
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written: {error.strerror} (in --verilog)", hint="Give another folder."
        ) from None


def _table(area: dict[str, tuple[int, Resources]]) -> Iterator[str]:
    names = [each.name for each in fields(Resources)]
    yield f"{'module':<32}{'number':>8}" + "".join(f"{name.upper():>12}" for name in names)
    for module, (number, each) in area.items():
        yield f"{module:<32}{number:>8,}" + "".join(f"{getattr(each, name):>12,.10g}" for name in names)
    taken = total(area)
    yield f"{'all':<32}{'':>8}" + "".join(f"{getattr(taken, name):>12,.10g}" for name in names)
    yield f"{'of an Alveo U250':<32}{'':>8}" + "".join(f"{part:>12.0%}" for part in taken.of(ALVEO_U250).values())


if __name__ == "__main__":
    sys.exit(main())
