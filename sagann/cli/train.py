"""``sagann train`` and ``sagann plan``: their options. The work is in train_run and plan_run, which load PyTorch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from sagann.byte_size import parse_bytes
from sagann.cli.options import Given, Shared, command, option, refuse_given, switch
from sagann.config import SETTINGS
from sagann.errors import require_choice

_RUN = "Run folder"


@command(*SETTINGS.values(), first="data")
def train(
    shared: Shared,
    given: Given,
    out: Annotated[
        Path | None,
        option(
            "Folder for the run: weights, metrics, checkpoints, configuration.",
            "RUN_DIR",
            default="runs/DATA-MODEL, numbered",
            panel=_RUN,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        option(
            "Settings from a TOML file with the sections data, model and train; the command line wins.",
            "FILE",
            panel=_RUN,
        ),
    ] = None,
    resume: Annotated[bool, switch("--resume", "Continue the run in RUN_DIR.", panel=_RUN)] = False,
    overwrite: Annotated[bool, switch("--overwrite", "Replace the run in RUN_DIR.", panel=_RUN)] = False,
) -> int:
    """Train a model on a graph, and save the run.

    Every setting may stand in a TOML file instead (--config); a run's own is RUN_DIR/config.toml.
    Ctrl-C or SIGTERM finishes the epoch, or with --sample the batch, and saves a checkpoint; --resume continues bitwise as if nothing had
    happened. With --workers several processes train together; on several machines, start them with torchrun -m sagann train.

    Example: sagann train --data demo --model gcn --epochs 100 --out runs/demo
    """
    with shared.loading():
        from sagann.cli.train_run import train_run

    return train_run(given, out=out, file=config, resume=resume, overwrite=overwrite, shared=shared)


SHOWN = ("program", "kernels", "steps")
_refuse = partial(refuse_given, where="sagann plan")


# Options of `sagann train` that plans of mini-batches depend on, those of workers, those of several trainers, and others.
_SAMPLING = tuple(setting for setting in SETTINGS.values() if setting.panel == "Mini-batches")
_OTHERS = ["task", "optimizer", "clip_norm", "seed", "workers", "balance", "link_rate"]
# Options of `sagann train` that say what is planned, and are no settings of the run that the plan is for.
_PLANNED = ("memory", "spill", "devices", "device")


@command(
    *(
        setting
        for setting in SETTINGS.values()
        if setting.section in ("data", "model") or setting in _SAMPLING or setting.name in (*_OTHERS, *_PLANNED)
    ),
    first="data",
)
def plan(
    shared: Shared,
    given: Given,
    show: Annotated[
        str,
        option(
            "program: the program that each layer is compiled to, and why; kernels: the generated source as well, "
            "without --memory; steps: with --memory, every step and copy of an epoch.",
            "|".join(SHOWN),
        ),
    ] = SHOWN[0],
    machine: Annotated[
        Path | None,
        option(
            "With --memory: rates of another machine, as 'sagann machine' writes them. With --devices: those of a machine with "
            "accelerators, or the name of a published one, as epyc-7763-u250.",
            "FILE",
            default="this one's, measured",
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        option("With --memory: draw the expected timeline into this PNG file.", "FILE", default="none"),
    ] = None,
    learned: Annotated[
        Path | None,
        option(
            "With --workers: predict seconds with the cost model that this run learned (--balance cost).",
            "RUN_DIR",
            default="the run of --config",
        ),
    ] = None,
    config: Annotated[Path | None, option("Settings from a TOML file; the command line wins.", "FILE")] = None,
) -> None:
    """Say what each layer of a model is compiled to on a graph, without training it.

    With --memory, say instead how an epoch is streamed: into how many intervals the graph is cut, how much memory it
    takes, what is copied, and how long it will take. With --sample, say how long an epoch of mini-batches will take, which
    bytes it reads, and what holds it up; a few batches are trained for that. With --devices, predict it for a processor and
    accelerators that train together, on this machine or on one that is described. With --workers, say how the graph is divided
    among them, and what a run has learned of their seconds.

    Example: sagann plan --data demo --model gat
    """
    require_choice(show, SHOWN, what="cannot show that", where="--show")
    memory, spill, devices, device = (given.get(name, SETTINGS[name].default) for name in _PLANNED)
    given = {name: value for name, value in given.items() if name not in _PLANNED}
    for_streaming = {
        "--show steps": show == "steps",
        "--spill": spill is not None,
        "--machine": machine is not None,
        "--picture": picture is not None,
    }
    for_one = {"--show kernels": show == "kernels", "--memory": memory is not None, "--device": device != "auto"}
    if "workers" in given:
        _refuse(
            {
                **for_streaming,
                **for_one,
                "--devices": devices is not None,
                "--sample": "sample" in given,
            },
            "the parts of workers are planned for the whole graph in memory",
            beside="with --workers",
            hint="Leave {name} out, or leave --workers out.",
        )
        with shared.loading():
            from sagann.cli.plan_workers import show_workers

        show_workers(given, config, shared, learned=learned)
        return
    _refuse(
        {"--learned": learned is not None, "--balance": "balance" in given},
        "nothing is divided without workers",
        beside="and no --workers",
        hint="Add --workers 2, or leave {name} out.",
    )
    if devices is not None:
        _refuse(
            {**for_streaming, "--machine": False, **for_one},
            "several trainers are predicted without this option",
            beside="with --devices",
            hint="Leave {name} out, or leave --devices out for one trainer.",
        )
        _refuse(
            {"--link-rate": machine is not None and "link_rate" in given},
            "a machine that is described states the rates of its links",
            beside="with --machine",
            hint="Leave {name} out and state bytes_per_s of the links in the file, or leave --machine out for this machine.",
        )
        with shared.loading():
            from sagann.cli.plan_hybrid import show_hybrid

        show_hybrid(given, config, shared, devices=devices, machine_file=machine)
        return
    if any(setting.name in given for setting in _SAMPLING):
        _refuse(
            {**for_streaming, "--show kernels": show == "kernels"},
            "epochs of mini-batches are not streamed",
            beside="with --sample",
            hint="Leave {name} out, or leave --sample out for an epoch of the whole graph.",
        )
        with shared.loading():
            from sagann.cli.plan_run import show_sampled

        show_sampled(given, config, shared, memory=memory, device_name=device)
        return
    if memory is None:
        _refuse(
            {**for_streaming, "--device": device != "auto"},
            "nothing is streamed without a memory budget",
            beside="and no --memory",
            hint="Add --memory 2GiB, or leave {name} out.",
        )
        with shared.loading():
            from sagann.cli.plan_run import show_programs

        show_programs(given, config, shared, with_source=show == "kernels")
        return
    _refuse(
        {"--show kernels": show == "kernels"},
        "kernels are not shown beside a memory budget",
        beside="with --memory",
        hint="Leave --memory out for the kernels, or {name} for how an epoch is streamed.",
    )
    with shared.loading():
        from sagann.cli.plan_run import show_streaming

    show_streaming(
        given,
        config,
        shared,
        budget_bytes=parse_bytes(memory, where="--memory"),
        with_steps=show == "steps",
        spill=None if spill is None else Path(spill),
        machine_file=machine,
        device_name=device,
        picture=picture,
    )
