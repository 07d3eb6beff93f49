"""Random number generators of a run: seeded, saved and restored. The caller's states come back untouched."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from sagann.errors import CheckpointError
from sagann.kernels.seeds import generators_of

_MT_WORDS = 624


def capture_rng(device: torch.device) -> dict[str, Tensor]:
    """The states of the global generators of torch (CPU and ``device``), NumPy and Python, each uint8 [n]."""
    version, words, gauss = random.getstate()
    assert version == 3
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    assert numpy_state["bit_generator"] == "MT19937"
    key, position = numpy_state["state"]["key"], numpy_state["state"]["pos"]
    state = {
        "torch": torch.get_rng_state().clone(),
        "python": _bytes(np.array([*words, gauss is not None], dtype=np.int64), gauss or 0.0),
        "numpy": _bytes(np.array([*key, position, numpy_state["has_gauss"]], dtype=np.int64), numpy_state["gauss"]),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_rng(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Set the generators to a result of :func:`capture_rng`. A missing state is a CheckpointError."""
    wanted = ["torch", "python", "numpy", *(["cuda"] if device.type == "cuda" else [])]
    for name in wanted:
        if name not in state:
            raise CheckpointError(
                "random state is missing",
                value=f"no state of the {name} generator; present: {', '.join(state) or 'none'}",
                where="checkpoint",
                fix="Resume on the kind of device that the run was started on.",
            )
    words, gauss = _parts(state["python"], _MT_WORDS + 2)
    random.setstate((3, tuple(int(word) for word in words[:-1]), gauss if words[-1] else None))
    words, cached = _parts(state["numpy"], _MT_WORDS + 2)
    key = words[:_MT_WORDS].astype(np.uint32)
    np.random.set_state(("MT19937", key, int(words[-2]), int(words[-1]), cached))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators inside the block, except those of other devices. Their states come back after the block."""
    before = capture_rng(device)
    for generator in generators_of(device):
        generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        restore_rng(before, device)


def _bytes(words: np.ndarray, cached: float) -> Tensor:
    return torch.from_numpy(np.concatenate([words.view(np.uint8), np.array([cached]).view(np.uint8)]).copy())


def _parts(state: Tensor, num_words: int) -> tuple[np.ndarray, float]:
    raw = state.numpy()
    if raw.nbytes != 8 * (num_words + 1):
        raise CheckpointError(
            "random state has the wrong size",
            value=f"{raw.nbytes} bytes, expected {8 * (num_words + 1)}",
            where="checkpoint",
            fix="Resume from another checkpoint.",
        )
    return raw[: 8 * num_words].view(np.int64), float(raw[8 * num_words :].view(np.float64)[0])
