"""Commands of runs and of the machine: their options. Their work is imported when they run: it loads PyTorch, and a part of it may be broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sagann.cli.failure import OUR_FAULT
from sagann.cli.options import Given, Shared, command, option, switch
from sagann.config import SETTINGS, WORKERS
from sagann.errors import require_choice
from sagann.options import Metavar, Values, check_fields, options, options_of
from sagann.processes import is_worker, rank

OverwriteOption = Annotated[bool, switch("--overwrite", "Replace an existing file.")]


@options("use", "Options")
@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """Options of the three commands: which run is opened, on which graph, and where it computes."""

    run: Annotated[str | None, Metavar("RUN_DIR")] = None
    "Folder written by 'sagann train' or a Trainer."
    data: Annotated[str | None, Metavar("PATH|NAME")] = None
    "Another graph: a dataset folder, an .npz file or a name, prepared like the run's own. None is the run's own."
    model: Annotated[str | None, Metavar("FILE.py:CLASS")] = None
    "The run's own model file, named again to allow its execution; not needed for models of the zoo."
    device: Annotated[str, SETTINGS["device"].mark(Values)] = "auto"
    "Where to compute."
    memory: Annotated[str | None, SETTINGS["memory"].mark(Values)] = None
    """Memory budget of each worker for vertex and edge tensors, as 2GiB: the model is streamed by intervals. None is that of training (half of it
    after mini-batches), or no budget for a run in memory."""
    spill: Annotated[str | None, SETTINGS["spill"].mark(Values)] = None
    "Folder for blocks of a streamed model that are not in memory. None is the run's, if it was set; else the system's temporary folder."

    def __post_init__(self) -> None:
        check_fields(self)


_OPENED = (*options_of(Opening).values(), *WORKERS)


@command(*_OPENED, first="run")
def evaluate(
    shared: Shared,
    given: Given,
    split: Annotated[
        str | None,
        option(
            "Split to measure on, as for 'sagann train'.",
            "SPLIT",
            default="the run's; with --data that dataset's own, else all labelled vertices",
        ),
    ] = None,
) -> int:
    """Evaluate a trained model on each split of its graph or of another one.

    Example: sagann evaluate runs/demo
    """
    with shared.loading():
        from sagann.cli.apply_run import use_run

    return use_run(given, shared, lambda trained: trained.evaluate(split))


@command(*_OPENED, first="run")
def predict(
    shared: Shared,
    given: Given,
    out: Annotated[Path, option("File to write: .csv, .parquet or .npy.", "FILE")],
    links: Annotated[
        Path | None,
        option(
            "For a link model: table of pairs to score, .csv or .parquet: source, destination, and type if edges have types. Messages "
            "are sent along all edges of the graph, including those that the run held out.",
            "FILE",
        ),
    ] = None,
    overwrite: OverwriteOption = False,
) -> int:
    """Predict classes with probabilities, or the values of a regression, for every vertex or graph, or the probabilities of links.

    One row per vertex (or per graph): vertex, class, class_name, probability. Multi-label: vertex, and a column per class with its
    probability (.npy: a float32 matrix). Regression: vertex, prediction, or prediction_0, prediction_1, ... for several targets (.npy: float32).
    Links: src, dst, type and probability of each pair of --links (.npy: the probabilities).

    Example: sagann predict runs/demo --out predictions.csv
    """
    with shared.loading():
        from sagann.cli.apply_run import use_run

    _check_out(out, (".csv", ".parquet", ".npy"), overwrite=overwrite)
    return use_run(given, shared, lambda trained: trained.predict(out, links))


@command(*_OPENED, first="run")
def embed(
    shared: Shared,
    given: Given,
    out: Annotated[Path, option("File to write: .npy.", "FILE")],
    overwrite: OverwriteOption = False,
) -> int:
    """Write an embedding of every vertex: the input of the last layer, a float32 matrix with a row per vertex.

    Example: sagann embed runs/demo --out embeddings.npy
    """
    with shared.loading():
        from sagann.cli.apply_run import use_run

    _check_out(out, (".npy",), overwrite=overwrite)
    return use_run(given, shared, lambda trained: trained.embed(out))


def _check_out(out: Path, suffixes: Sequence[str], *, overwrite: bool) -> None:
    """Refuse a file that cannot or should not be written. Of several workers, the first one alone writes it."""
    from sagann.cli.result_file import check_target

    if not is_worker() or rank() == 0:
        check_target(out, suffixes, overwrite=overwrite)


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
        ),
    ] = None,
    config: Annotated[
        Path | None,
        option("TOML file with the sections data, model and train; the command line overrides it.", "FILE"),
    ] = None,
    resume: Annotated[bool, switch("--resume", "Continue the run in RUN_DIR.")] = False,
    overwrite: Annotated[bool, switch("--overwrite", "Replace the run in RUN_DIR.")] = False,
) -> int:
    """Train a model on a graph, and save the run.

    All settings can also be read from a TOML file (--config); a run saves its own as RUN_DIR/config.toml.
    Ctrl-C or SIGTERM finishes the epoch, or with --sample the batch, and saves a checkpoint; --resume continues bitwise as if
    uninterrupted. With --workers several processes train together; on several machines, start them with torchrun -m sagann train.

    Example: sagann train demo --model gcn --epochs 100 --out runs/demo
    """
    with shared.loading():
        from sagann.cli.train_run import train_run

    return train_run(given, out=out, file=config, resume=resume, overwrite=overwrite, shared=shared)


SHOWN = ("program", "kernels", "steps")


@command(*SETTINGS.values(), first="data")
def plan(
    shared: Shared,
    given: Given,
    show: Annotated[
        str,
        option(
            "program: what each layer is compiled to, and why; kernels: also the generated source, "
            "without --memory; steps: with --memory, every step and copy of an epoch.",
            "|".join(SHOWN),
        ),
    ] = SHOWN[0],
    machine: Annotated[
        Path | None,
        option(
            "With --memory: rates of another machine, as 'sagann machine' writes them; with --devices 8 beside it, of one with so many devices, as "
            "p100x8. With --sample and --devices: those of a machine with accelerators, or the name of a published one, as epyc-7763-u250.",
            "FILE",
            default="this one's, measured",
        ),
    ] = None,
    kernel: Annotated[
        str | None,
        option(
            "With --devices and --machine: other sizes of its hardware kernels, as scatter_pes=16,window_rows=128.",
            "NAME=VALUE,...",
            default="those of the file",
        ),
    ] = None,
    picture: Annotated[
        Path | None, option("With --memory: draw the expected timeline into this PNG file.", "FILE", default="none")
    ] = None,
    learned: Annotated[
        Path | None,
        option(
            "With --workers: predict seconds with the cost model that this run learned (--balance cost).",
            "RUN_DIR",
            default="none",
        ),
    ] = None,
    config: Annotated[
        Path | None, option("TOML file with settings; the command line overrides it.", "FILE")
    ] = None,
) -> None:
    """Explain what 'sagann train' would do with the same options, without training.

    By default, show what each layer of the model is compiled to. With --memory, show how an epoch is streamed: the number of intervals,
    the memory needed, the bytes copied, and the expected time. With --sample, train a few mini-batches to predict the time of an epoch, the
    bytes read, and the bottleneck. With --devices, predict this for a processor and accelerators that train together, on this machine or
    another one. With --workers, show how the graph is partitioned, and the seconds that a run's cost model predicts.

    Example: sagann plan demo --model gat
    """
    require_choice(show, SHOWN, what="cannot show that", where="--show")
    with shared.loading():
        from sagann.cli.plan_run import plan_run

    plan_run(given, config, shared, show=show, machine=machine, kernel=kernel, picture=picture, learned=learned)


@command()
def doctor(shared: Shared) -> int:
    """Report what is installed, what this machine offers, and which parts of sagann work.

    The exit code is 0 if everything that sagann needs works.
    """
    with shared.loading():
        from sagann.report import doctor_tables as tables
        from sagann.report.probes import run_probes

    terminal = shared.terminal()
    for table in (tables.versions_table(), tables.machine_table(), tables.extras_table()):
        terminal.show(table)
    terminal.say("Trying each part ...")
    findings = run_probes()
    terminal.show(tables.findings_table(findings))
    broken = [found.name for found in findings if found.core and not found.ok]
    broken += [name for name, version in tables.core_versions().items() if version is None]
    if broken:
        terminal.show(f"sagann does not work here: {', '.join(broken)}.")
        return OUR_FAULT
    terminal.show("sagann works here.")
    return 0


@command()
def machine(
    shared: Shared,
    out: Annotated[Path | None, option("File to write: .toml.", "FILE", default="none")] = None,
    disk: Annotated[Path, option("Folder on the disk to measure, to which runs would spill.", "FOLDER")] = Path(),
    device: Annotated[str, option("Device to measure.", "cpu|cuda|cuda:N")] = "cpu",
    overwrite: Annotated[bool, switch("--overwrite", "Replace an existing file.")] = False,
) -> None:
    """Measure this machine: how fast it computes, gathers over edges, copies, reads and writes.

    Takes a few seconds; run it on an idle machine. --out writes the rates as TOML.

    Example: sagann machine --out machine.toml
    """
    with shared.loading():
        import torch

        from sagann.cli.result_file import check_target
        from sagann.runtime.forecasting.probe import probe
        from sagann.runtime.places import device_named
        from sagann.storage.folder import write_whole

    terminal = shared.terminal()
    if out is not None:
        check_target(out, (".toml",), overwrite=overwrite)
    computes = device_named(device)
    what = f"{torch.get_num_threads()} threads" if computes.type == "cpu" else str(computes)
    terminal.say(f"Measuring on {what}, and the disk of {disk.absolute()} ...")
    found = probe(disk, computes)
    terminal.show(found.to_toml())
    if out is not None:
        write_whole(out, found.to_toml().encode())
        terminal.show(f"Rates written to {out}")
