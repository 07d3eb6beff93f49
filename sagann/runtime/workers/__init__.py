"""Workers: processes that train one model together, each with a part of the graph. ``torch.distributed`` carries what they send."""

from sagann.runtime.workers.batch_norms import batch_norms_over_all
from sagann.runtime.workers.exchange import HaloBlocks
from sagann.runtime.workers.group import Workers
from sagann.runtime.workers.meeting import join_workers
from sagann.runtime.workers.part_batches import PartEdges, PartRows
from sagann.runtime.workers.worker_part import WorkerPart, worker_part

__all__ = [
    "HaloBlocks",
    "PartEdges",
    "PartRows",
    "WorkerPart",
    "Workers",
    "batch_norms_over_all",
    "join_workers",
    "worker_part",
]
