"""A thread that works serially changes nothing for other threads."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import threading, torch
from sagann.runtime.loading.serial_thread import work_serially
torch.set_num_threads(4)
found = []
def body():
    work_serially()
    torch.ones(1 << 20).index_select(0, torch.arange(1 << 20))
    found.append(torch.get_num_threads())
thread = threading.Thread(target=body)
thread.start()
thread.join()
other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
other.start()
other.join()
print(*found, torch.get_num_threads(), "mkl_get_max_threads() : 4" in torch.__config__.parallel_info())
"""


def test_only_the_calling_thread_is_serial() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "4", "4", "True"]
