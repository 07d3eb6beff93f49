"""``sagann plan --memory``: how an epoch is streamed, and what it will be like."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import nn

from sagann.byte_size import parse_bytes
from sagann.cli.toml_file import read_text
from sagann.errors import InputError, MissingDependencyError
from sagann.free_space import nearest_folder
from sagann.graph import Graph
from sagann.graph.large_arrays import made_by
from sagann.plan.machine import Machine
from sagann.report.terminal import Terminal
from sagann.runtime.forecasting.timeline_files import can_draw
from sagann.train.resources import resolve_device
from sagann.train.run_folder import RUNS


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What is to be shown."""

    budget_bytes: int
    "Memory budget of an epoch, in bytes."
    with_steps: bool
    "Whether every step and copy is."
    spill: Path | None
    "Folder that blocks will go to; None for the place that `sagann train` takes."
    machine: Path | None
    "A file of rates; None for this machine's."
    device: str
    "What will compute."
    picture: Path | None
    "Where the timeline is drawn."

    @classmethod
    def of(
        cls,
        *,
        memory: str | None,
        show: str,
        spill: Path | None,
        machine: Path | None,
        device: str,
        picture: Path | None,
    ) -> Self | None:
        """What options ask for; None without a budget.

        Raises:
            InputError: the budget is none, or an option makes no sense without one, or beside one.
        """
        with_steps = show == "steps"
        if memory is not None:
            if show == "kernels":
                raise InputError(
                    "kernels are not shown beside a memory budget",
                    value="--show kernels, with --memory",
                    where="sagann plan",
                    fix="Leave --memory out for the kernels, or --show kernels for how an epoch is streamed.",
                )
            return cls(
                budget_bytes=_budget(memory),
                with_steps=with_steps,
                spill=spill,
                machine=machine,
                device=device,
                picture=picture,
            )
        given = {"--show steps": with_steps, "--spill": spill, "--machine": machine, "--picture": picture}
        given["--device"] = device != "auto"
        for name, value in given.items():
            if value:
                raise InputError(
                    "nothing is streamed without a memory budget",
                    value=f"{name}, and no --memory",
                    where="sagann plan",
                    fix=f"Add --memory 2GiB, or leave {name} out.",
                )
        return None

    @property
    def folder(self) -> Path:
        """A folder on the disk that blocks will go to: the nearest one that exists, because training makes the others."""
        return nearest_folder((self.spill or RUNS).absolute())

    @contextmanager
    def large_arrays(self) -> Iterator[None]:
        """Inside the ``with`` block, arrays with a row per edge that preparing a graph gives lie where blocks will go."""
        from sagann.runtime.blocks.scratch import Scratch

        with made_by(Scratch(self.folder)):
            yield


def show_streaming(terminal: Terminal, model: nn.Module, graph: Graph, wish: Wish) -> None:
    """Print the plan of an epoch and its forecast.

    Args:
        terminal: where to.
        model: to be trained.
        graph: prepared for it.
        wish: what is to be shown.
    """
    from sagann.report.plan_text import forecast_text, plan_text, steps_text
    from sagann.runtime.forecasting.forecast import forecast
    from sagann.runtime.forecasting.probe import probe
    from sagann.runtime.forecasting.timeline_files import write_picture
    from sagann.runtime.streaming.stream import foretell

    if wish.picture is not None:
        _check_picture(wish.picture)
    device = resolve_device(wish.device)
    machine = None if wish.machine is None else machine_in(wish.machine, device)
    model = model.to(device)
    # Beside a device the host's memory takes what does not fit, where no folder is named.
    on_disk = device.type == "cpu" or wish.spill is not None
    terminal.say("Planning ...")
    planned = foretell(model, graph, budget_bytes=wish.budget_bytes, device=device, on_disk=on_disk)
    terminal.show(plan_text(planned, on_disk=on_disk))
    if wish.with_steps:
        terminal.show(steps_text(planned.plan))
    if machine is None:
        terminal.say("Measuring this machine, and timing steps of the plan ...")
        machine = probe(wish.folder, device)
        expected = forecast(planned, machine, on_disk=on_disk, rehearsal=(model, graph))
    else:
        if wish.spill is not None:
            terminal.say(f"--spill {wish.spill} is not looked at: the disk's rates are those of {wish.machine}.")
        expected = forecast(planned, machine, on_disk=on_disk)
    terminal.show(forecast_text(expected))
    if wish.picture is not None:
        write_picture(wish.picture, {"planned": expected.timeline})


def machine_in(path: Path, device: torch.device) -> Machine:
    """The machine that a file describes.

    Args:
        path: of the file.
        device: what will compute.
    Raises:
        InputError: it is no such file, or its rates are of a device where the processor computes, or the other way round.
    """
    found = Machine.from_toml(_text_of(path), where=str(path))
    of_device = found.host_to_device_bytes is not None
    if of_device == (device.type != "cpu"):
        return found
    if of_device:
        value, fix = "copies to a device have rates", "Add --device cuda, name a file of `sagann machine`"
    else:
        value, fix = "copies to a device have no rates", "Name a file of `sagann machine --device cuda`"
    raise InputError(
        "machine file is for another kind of device",
        value=f"{value}, and --device is {device}",
        where=str(path),
        fix=f"{fix}, or leave --machine out: this machine is measured then.",
    )


def _budget(text: str) -> int:
    budget_bytes = parse_bytes(text, where="--memory")
    if budget_bytes == 0:
        raise InputError(
            "a memory budget of nothing",
            value=f"'{text}', expected a size above 0",
            where="--memory",
            fix="Write a number and a unit, as 256MiB or 2GB.",
        )
    return budget_bytes


def _check_picture(path: Path) -> None:
    """Refuse a picture that could not be drawn, before the work is done."""
    if not can_draw():
        raise MissingDependencyError("matplotlib", extra="plots", feature="--picture")
    if path.suffix != ".png" or not path.absolute().parent.is_dir():
        raise InputError(
            "picture cannot be written",
            value=f"'{path}', expected a file that ends in .png, in a folder that exists",
            where="--picture",
            fix="Name such a file.",
        )


def _text_of(path: Path) -> str:
    try:
        return read_text(path, what="machine file")
    except UnicodeDecodeError as error:
        raise InputError(
            "machine file is no text",
            value=str(error),
            where=str(path),
            fix="Name a file that `sagann machine` wrote.",
        ) from error
