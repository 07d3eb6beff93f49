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

from bench.device.contests import HEADER, Measure, epochs, free, gathers, streamed
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
    print(
        f"`{command_line('bench.device', given)}`; {where(device)} Two layers, hidden {arguments.hidden}, no dropout; seconds are medians of "
        f"{arguments.rounds} rounds in alternation.\n\n{HEADER}",
        flush=True,
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
                    print("\n".join(contest()), flush=True)
                except Exception as error:  # noqa: BLE001
                    # The rest of the table is worth having all the same.
                    wrong += 1
                    first = (str(error).splitlines() or [""])[0]
                    said = f"failed: {type(error).__name__}: {first}"[:200].replace("|", "/")
                    print(row([what, dataset, "-", "-", "-", "-", said]), flush=True)
                finally:
                    free(how.device)
    return int(wrong > 0)


def _contests(
    dataset: str, folder: Path, arguments: argparse.Namespace, how: Measure
) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    stored = write_task(folder, dataset, [*arguments.models, *arguments.streamed], arguments.hidden)
    told = {"hidden": arguments.hidden, "folder": str(folder)}
    plain, variants = graph_of(stored), arguments.variants
    for model in arguments.models:
        specification = specification_of(model, **told)
        yield f"epoch, {model}", lambda m=model, s=specification: [epochs(dataset, m, s, variants, folder, how)]
    yield "gathers", lambda: list(gathers(dataset, plain, arguments.hidden, how))
    for model in arguments.streamed:
        specification = specification_of(model, **told)
        yield (
            f"streamed, {model}",
            lambda m=model, s=specification: [streamed(dataset, m, s, load(s, folder), how)],
        )


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, hidden=128, rounds=5, work=None)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu; default cuda")
    parser.add_argument(
        "--datasets", nargs="+", choices=list(SHAPES), default=["reddit-small", "reddit-middle"], metavar="NAME"
    )
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="PyG's forms of the edges"
    )
    parser.add_argument("--streamed", nargs="*", choices=MODELS, default=["gcn", "gated-gcn", "gat", "ggnn"])
    parser.add_argument("--at-least", type=float, default=0.5, help="seconds of a turn; shorter runs are repeated")
    parser.add_argument("--copied", type=float, default=1024, help="MiB that are copied to know the bandwidth by")
    return parser.parse_args(given)


if __name__ == "__main__":
    raise SystemExit(main())
