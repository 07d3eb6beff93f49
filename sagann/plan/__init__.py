"""Plans: how a graph is cut, and what is done with the parts. Pure: nothing here opens a file or a device."""

from sagann.plan.grid import ChunkGrid, EdgeChunk
from sagann.plan.intervals import equal_vertices, equal_weights

__all__ = ["ChunkGrid", "EdgeChunk", "equal_vertices", "equal_weights"]
