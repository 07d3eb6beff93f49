"""What torchrun tells the processes that it starts, by environment variables."""

from __future__ import annotations

import os


def is_worker() -> bool:
    """Whether torchrun started this process together with others."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_restarted() -> bool:
    """Whether torchrun has started this process anew, after a worker was lost (``--max-restarts``)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
