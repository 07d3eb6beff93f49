"""Threads of a pipeline that are alive."""

from __future__ import annotations

import threading


def pipeline_threads() -> list[threading.Thread]:
    """Threads of pipelines. Those that share kernels stay for the life of a process, once there are several."""
    return [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("sagann-") and not thread.name.startswith("sagann-kernel")
    ]
