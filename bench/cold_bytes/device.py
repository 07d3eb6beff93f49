"""Seconds of giving a CUDA device the rows of sampled batches: ``python -m bench.cold_bytes.device``.

Rows are those that the batches of a sampled epoch of a power-law graph read. A ``DeviceFeatures`` with several parts of hot rows is compared
with rows that the processor gathers into pinned memory and copies, and with features that lie on the device as a whole. Contestants take
turns of an epoch of batches, and a turn ends when the device is done. Prints Markdown.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from bench.cold_bytes.sampled_epochs import OPTIONS, Case, cases, numbers
from bench.minibatches.sagann_worker import devices_of
from bench.pages import command_line, head, parser_of, row
from bench.timing import alternate, device_to_measure, where
from sagann.runtime.processor import num_cores
from sagann.runtime.tiered import DeviceFeatures
from sagann.tiering import hottest

COPY = "contiguous copies of as many bytes"
EXPLAINED = """\
- `rows(ids)`: a call of `DeviceFeatures.rows` for each batch, from ids in the host's memory. `its kernel`: the gather alone, with ids on the
  device and memory that is there.
- `index_select, copy`: the processor gathers a batch into pinned memory, on so many threads, which is copied while the next batch is gathered.
- `index_select on the device`: all features lie there; PyTorch takes the rows.
- `not pinned`: the driver refused to pin the memory, so that the processor gathers the rows that are not hot.
- *bus*: bytes that cross the bus, over the seconds; *of copies*: that rate over the rate of contiguous copies from pinned memory."""


class Way(NamedTuple):
    """A way of giving the device its rows."""

    rows: Callable[[int], Tensor]
    "Queues the rows of a batch, by its number; gives them: [n, F] on the device."
    hot_share: float | None
    "Part of the rows that lie on the device; None for copies."
    bus_share: float
    "Part of the rows that cross the bus."


def main(given: Sequence[str] | None = None) -> int:
    options = _options(given)
    device = device_to_measure(options.device)
    print(
        f"# Rows of features for a CUDA device\n\n`{command_line('bench.cold_bytes.device', given)}`; {where(device)}\n\n"
        f"Fanouts {', '.join(map(str, options.fanouts))}; rows of {4 * options.width} bytes; medians of {options.rounds} rounds.\n\n{EXPLAINED}"
    )
    for case in cases(options):
        batches = [torch.from_numpy(ids) for ids in case.batches(options.fanouts, range(options.epochs))]
        num_bytes = sum(map(len, batches)) * 4 * options.width
        ways = ways_of(case, batches, options, device)
        seconds = measured(ways, len(batches), options, device)
        print(f"\n{case.name}, {len(batches)} batches, {num_bytes / 2**20:,.0f} MiB:\n")
        print("\n".join(rows_of(ways, seconds, num_bytes)), flush=True)
    return 0


def ways_of(
    case: Case, batches: Sequence[Tensor], options: argparse.Namespace, device: torch.device
) -> dict[str, Way]:
    """All ways, by name."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(case.topology.num_src, options.width, generator=generator)
    found = {COPY: copied(features, batches, device)}
    order = hottest(case.score("vip", options.fanouts))
    for part in options.hot:
        # Memory is pinned by one store alone.
        store = DeviceFeatures(features.clone(), part, devices=devices_of(device), hottest=order)
        found |= of_store(store, f"{part:.0%} hot", batches)
    for threads in dict.fromkeys((1, options.threads)):
        found[f"index_select, copy; {threads} threads"] = gathered_by_host(features, batches, threads, device)
    resident = features.to(device)
    found["index_select on the device"] = Way(
        rows=lambda number: resident.index_select(0, batches[number].to(device)), hot_share=1.0, bus_share=0.0
    )
    for name, way in found.items():
        if name != COPY:
            assert torch.equal(way.rows(0).cpu(), features[batches[0]]), f"{name} gives other rows"
    return found


def of_store(store: DeviceFeatures, name: str, batches: Sequence[Tensor]) -> dict[str, Way]:
    """The rows of a store, and its kernel alone."""
    device = store.device
    fars = [store.pick(ids).mapped(lambda array: array.to(device)) for ids in batches]
    ids_there = [ids.to(device) for ids in batches]
    out = torch.empty(max(map(len, batches)), *store.row_shape, dtype=store.dtype, device=device)

    def gather(number: int) -> Tensor:
        rows = out[: len(batches[number])]
        store.gather(ids_there[number], fars[number], rows)
        return rows

    for number in range(len(batches)):
        gather(number)
    tiers = store.tiers()
    total = sum(tier.rows for tier in tiers.values())
    hot_share = tiers["device"].rows / total
    name += "" if store.is_in_place else ", not pinned"
    whole = Way(rows=lambda number: store.rows(batches[number]), hot_share=hot_share, bus_share=1 - hot_share)
    # Far rows are on the device already.
    kernel = Way(rows=gather, hot_share=hot_share, bus_share=tiers["in place"].rows / total)
    return {f"{name}, rows(ids)": whole, f"{name}, its kernel": kernel}


def copied(features: Tensor, batches: Sequence[Tensor], device: torch.device) -> Way:
    """Copies of the first rows, as many as a batch has, which lie in pinned memory side by side."""
    most = max(map(len, batches))
    source = _pinned((most, features.shape[1]), device)
    source.copy_(features[:most] if most <= len(features) else features[torch.arange(most) % len(features)])
    target = torch.empty(source.shape, device=device)

    def rows(number: int) -> Tensor:
        count = len(batches[number])
        return target[:count].copy_(source[:count], non_blocking=True)

    return Way(rows=rows, hot_share=None, bus_share=1.0)


def gathered_by_host(features: Tensor, batches: Sequence[Tensor], threads: int, device: torch.device) -> Way:
    """The processor gathers a batch into pinned memory of its own, and the device copies it beside the next batch's gather."""
    pieces = [_pinned((len(ids), features.shape[1]), device) for ids in batches]
    target = torch.empty(max(map(len, batches)), features.shape[1], device=device)

    def rows(number: int) -> Tensor:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        piece = torch.index_select(features, 0, batches[number], out=pieces[number])
        torch.set_num_threads(before)
        return target[: len(piece)].copy_(piece, non_blocking=True)

    return Way(rows=rows, hot_share=0.0, bus_share=1.0)


def _pinned(shape: tuple[int, int], device: torch.device) -> Tensor:
    return torch.empty(shape, pin_memory=device.type == "cuda")


def measured(
    ways: Mapping[str, Way], num_batches: int, options: argparse.Namespace, device: torch.device
) -> dict[str, float]:
    def epoch(way: Way) -> None:
        for number in range(num_batches):
            way.rows(number)

    runs = {name: partial(epoch, way) for name, way in ways.items()}
    taken = alternate(runs, rounds=options.rounds, at_least_s=options.at_least, device=device)
    return {name: median(seconds) for name, seconds in taken.items()}


def rows_of(ways: Mapping[str, Way], seconds: Mapping[str, float], num_bytes: int) -> list[str]:
    """A row of the table for each way."""
    copies_per_s = num_bytes / seconds[COPY]
    rows = [head(("way", "ms", "GB/s", "rows on the device", "bus, GB/s", "of copies"))]
    for name, way in ways.items():
        rate = num_bytes / seconds[name]
        cells = [name, f"{seconds[name] * 1e3:.2f}", f"{rate / 1e9:.1f}"]
        cells += ["-" if way.hot_share is None else f"{way.hot_share:.1%}"]
        bus_per_s = way.bus_share * rate
        cells += [f"{bus_per_s / 1e9:.1f}", f"{bus_per_s / copies_per_s:.2f}"] if way.bus_share else ["-", "-"]
        rows.append(row(cells))
    return rows


def _options(given: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(
        __doc__,
        {"epochs": 1, "threads": num_cores(), "rounds": 5, "device": "cuda", "at_least": 0.1},
        **OPTIONS,
        fanouts=((25, 10), "fanouts", numbers),
        width=(128, "features, of 4 bytes each"),
        hot=([0.0, 0.1, 0.5, 1.0], "parts of hot rows"),
    )
    parser.set_defaults(rmat=[(1_000_000, 20_000_000)], labelled=0.016384)
    return parser.parse_args(given)


if __name__ == "__main__":
    raise SystemExit(main())
