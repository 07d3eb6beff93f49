"""A device's figures in one table: ``python -m bench.device``. It asks nothing, and goes on where something fails.

Epochs of the eight models against the best of PyG's variants on the same device; the fused gathers against the device's
copy bandwidth; and epochs streamed to the device within an eighth of their working set, their host in memory, against the
same code without a budget. With ``--device cpu`` the same runs on the processor, to try the script out.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.device.contests import HEADER, epochs, free, gathers, streamed
from bench.epochs.graphs import SHAPES, graph_of, specification_of, write_task
from bench.epochs.pyg_worker import VARIANTS
from bench.epochs.report import DENSE_MODELS, EDGE_MODELS
from bench.epochs.sagann_worker import load
from bench.pages import command_line, parser_of, row
from bench.timing import where
from sagann.errors import InputError
from sagann.runtime.places import device_named

MODELS = (*DENSE_MODELS, *EDGE_MODELS)


def main(given: Sequence[str] | None = None) -> int:
    arguments = _arguments(given)
    try:
        arguments.device = device_named(arguments.device)
    except InputError as error:
        sys.stderr.write(f"There is nothing to measure. {error}\n")
        return 1
    print(
        f"`{command_line('bench.device', given)}`; {where(arguments.device)} Two layers, hidden {arguments.hidden}, no dropout; seconds are medians of "
        f"{arguments.rounds} rounds in alternation.\n\n{HEADER}",
        flush=True,
    )
    with warnings.catch_warnings():
        # Of PyTorch's sparse matrices, which are PyG's.
        warnings.simplefilter("ignore", UserWarning)
        return _measure(arguments)


def _measure(arguments: argparse.Namespace) -> int:
    wrong = 0
    for dataset in arguments.datasets:
        with TemporaryDirectory(prefix="sagann_device_", dir=arguments.work) as folder:
            for what, contest in _contests(dataset, Path(folder), arguments):
                try:
                    print("\n".join(contest()), flush=True)
                except Exception as error:  # noqa: BLE001
                    # The rest of the table is worth having all the same.
                    wrong += 1
                    first = (str(error).splitlines() or [""])[0]
                    said = f"failed: {type(error).__name__}: {first}"[:200].replace("|", "/")
                    print(row([what, dataset, "-", "-", "-", "-", said]), flush=True)
                finally:
                    free(arguments.device)
    return int(wrong > 0)


def _contests(
    dataset: str, folder: Path, how: argparse.Namespace
) -> Iterator[tuple[str, Callable[[], Iterable[str]]]]:
    plain = graph_of(write_task(folder, dataset, [*how.models, *how.streamed], how.hidden))
    told = {"hidden": how.hidden, "folder": str(folder)}
    for model in how.models:
        specification = specification_of(model, **told)
        yield f"epoch, {model}", lambda m=model, s=specification: [epochs(dataset, m, s, folder, how)]
    yield "gathers", lambda: gathers(dataset, plain, how)
    for model in how.streamed:
        specification = specification_of(model, **told)
        yield f"streamed, {model}", lambda m=model, s=specification: [streamed(dataset, m, s, load(s, folder), how)]


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    return parser_of(
        __doc__,
        {"hidden": 128, "rounds": 5, "work": None, "device": "cuda", "at_least": 0.5},
        datasets=(["reddit-small", "reddit-middle"], "graphs", SHAPES),
        models=(list(MODELS), "models of epochs in memory", MODELS),
        variants=(list(VARIANTS), "PyG's forms of the edges", VARIANTS),
        streamed=(["gcn", "gated-gcn", "gat", "ggnn"], "models of streamed epochs", MODELS),
        copied=(1024.0, "MiB that are copied to know the bandwidth by"),
    ).parse_args(given)


if __name__ == "__main__":
    raise SystemExit(main())
