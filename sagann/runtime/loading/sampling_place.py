"""Where the batches of a loop are sampled: on the processor, or on the CUDA device that they go to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from sagann.errors import InputError, require_type
from sagann.graph.topology import Topology
from sagann.runtime.device.cuda_devices import CudaDevices
from sagann.runtime.tiered import DeviceSampler, DeviceTopology

SampleOn: TypeAlias = str | DeviceTopology
"""Who samples: "cpu", "device", or the device of a :class:`sagann.runtime.tiered.DeviceTopology`, which states where its edges lie."""

PLACES = ("cpu", "device")
"The names of who samples."


def device_sampler_of(
    sample_on: SampleOn,
    topology: Topology,
    fanouts: Sequence[int],
    *,
    device: torch.device,
    replace: bool,
    weights: str | None,
    seed: int,
) -> DeviceSampler | None:
    """The sampler of the device that batches go to; None where the processor samples.

    Raises:
        InputError: no device samples so, or a graph's edges are not those of ``topology``.
        MissingDependencyError: Triton is not installed.
    """
    where, hint = "MiniBatches.sample_on", "Leave sample_on out, and the processor samples."
    require_type(sample_on, (str, DeviceTopology), where=where, hint='Pass "cpu", "device" or a DeviceTopology.')
    if sample_on == "cpu":
        return None
    if isinstance(sample_on, str):
        if sample_on not in PLACES:
            raise InputError(
                f"nothing of that name samples: '{sample_on}' (in {where})",
                hint=f"Choose one of {', '.join(PLACES)}.",
            )
        if device.type == "cpu":
            raise InputError(
                f"there is no device that could sample: batches go to 'cpu' (in {where})",
                hint="Pass device='cuda', or leave sample_on out: the processor samples.",
            )
    if weights is not None:
        raise InputError(f"a device does not pick edges by weight: weights='{weights}' (in {where})", hint=hint)
    if isinstance(sample_on, DeviceTopology):
        if sample_on.device != device:
            raise InputError(
                f"edges are read by another device: batches go to '{device}', the edges to "
                f"'{sample_on.device}' (in {where})",
                hint=f"Pass device='{sample_on.device}', or a DeviceTopology of that device.",
            )
        if sample_on.topology is not topology:
            raise InputError(
                f"edges are those of another graph: {sample_on.topology}, the graph has {topology} (in {where})",
                hint="Make the DeviceTopology of graph.topology, after model.prepare(graph).",
            )
        edges = sample_on
    else:
        edges = DeviceTopology(topology, devices=CudaDevices([device]))
    return DeviceSampler(edges, fanouts, replace=replace, seed=seed)
