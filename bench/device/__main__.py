"""A device's figures in one table: ``python -m bench.device``. It asks nothing, and goes on where something fails.

Epochs of the eight models against the best of PyG's variants on the same device; the fused gathers against the device's
copy bandwidth; and epochs streamed to the device within an eighth of their working set, their host in memory, against the
same code without a budget. With ``--device cpu`` the same runs on the processor, to try the script out.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bench.device.clock import free
from bench.device.contests import HEADER, Line, Measure, epochs, gathers, streamed
from bench.device.place import device_name
from bench.epochs.graphs import SHAPES, graph_of, stored_graph, write_graph, write_weights
from bench.epochs.pyg_worker import VARIANTS
from bench.epochs.report import DENSE_MODELS, EDGE_MODELS
from bench.epochs.sagann_worker import config_of, load
from sagann.errors import InputError
from sagann.runtime.places import device_named

MODELS = (*DENSE_MODELS, *EDGE_MODELS)


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status."""
    arguments = _arguments(given)
    try:
        device = device_named(arguments.device)
    except InputError as error:
        sys.stderr.write(f"There is nothing to measure. {error}\n")
        return 1
    how = Measure(
        device=device,
        rounds=arguments.rounds,
        at_least_s=arguments.at_least,
        copied_bytes=int(arguments.copied * 2**20),
    )
    _say(
        arguments.out,
        [
            f"`python -m {' '.join(['bench.device', *(sys.argv[1:] if given is None else given)])}`; "
            f"{device_name(device)}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}. Two layers, hidden "
            f"{arguments.hidden}, no dropout; seconds are medians of {arguments.rounds} rounds in alternation.",
            "",
            HEADER,
        ],
    )
    with warnings.catch_warnings():
        # Of PyTorch's sparse matrices, which are PyG's.
        warnings.simplefilter("ignore", UserWarning)
        return _measure(arguments, how)


def _measure(arguments: argparse.Namespace, how: Measure) -> int:
    wrong = 0
    for dataset in arguments.datasets:
        with TemporaryDirectory(prefix="sagann_device_", dir=arguments.work) as folder:
            for what, contest in _contests(dataset, Path(folder), arguments, how):
                try:
                    _say(arguments.out, [line.text() for line in contest()])
                except Exception as error:  # noqa: BLE001
                    # The rest of the table is worth having all the same.
                    wrong += 1
                    _say(arguments.out, [f"| {what} | {dataset} | - | - | - | - | failed | {_first(error)} |"])
                finally:
                    free(how.device)
    return int(wrong > 0)


def _contests(
    dataset: str, folder: Path, arguments: argparse.Namespace, how: Measure
) -> Iterator[tuple[str, Callable[[], list[Line]]]]:
    stored = stored_graph(dataset)
    write_graph(folder, stored)
    specifications = {model: _specification(arguments, model, folder) for model in arguments.models}
    configs = [config_of(each) for each in specifications.values()]
    write_weights(folder, configs, stored.features.shape[1], stored.num_classes)
    plain = graph_of(stored)
    variants = arguments.variants
    for model, specification in specifications.items():
        yield f"epoch, {model}", lambda m=model, s=specification: [epochs(dataset, m, s, variants, folder, how)]
    yield "gathers", lambda: list(gathers(dataset, plain, arguments.hidden, how))
    for model in arguments.streamed:
        specification = _specification(arguments, model, folder)
        if model not in specifications:
            write_weights(folder, [config_of(specification)], stored.features.shape[1], stored.num_classes)
        yield (
            f"streamed, {model}",
            lambda m=model, s=specification: [streamed(dataset, m, s, load(s, folder), how)],
        )


def _specification(arguments: argparse.Namespace, model: str, folder: Path) -> dict:
    return {
        "model": model,
        "variant": "",
        "layers": 2,
        "hidden": arguments.hidden,
        "heads": 8,
        "encoder": False,
        "defaults": False,
        "dropout": 0.0,
        "sparse": False,
        "folder": str(folder),
    }


def _first(error: BaseException) -> str:
    line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {line}"[:200].replace("|", "/")


def _say(out: Path | None, lines: list[str]) -> None:
    print("\n".join(lines), flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a") as file:
            file.write("\n".join(lines) + "\n")


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu; default cuda")
    parser.add_argument(
        "--datasets", nargs="+", choices=list(SHAPES), default=["reddit-small", "reddit-middle"], metavar="NAME"
    )
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="PyG's forms of the edges"
    )
    parser.add_argument("--streamed", nargs="*", choices=MODELS, default=["gcn", "gated-gcn", "gat", "ggnn"])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each in alternation")
    parser.add_argument("--at-least", type=float, default=0.5, help="seconds of a turn; shorter runs are repeated")
    parser.add_argument("--copied", type=float, default=1024, help="MiB that are copied to know the bandwidth by")
    parser.add_argument("--work", type=Path, help="folder for graphs, which are deleted after use")
    parser.add_argument("--out", type=Path, help="append the table there too, line by line")
    return parser.parse_args(given)


if __name__ == "__main__":
    raise SystemExit(main())
