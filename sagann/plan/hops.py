"""Hops: the topologies that gathers walk, or the edges of one type of a topology, and the bytes of their chunks.

No chunk is made to measure it, and the edges of a type are looked up range by range, never all at once.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from sagann.compiler.model_program import ModelProgram
from sagann.graph.feature_store import version_of
from sagann.graph.rows import id_dtype, local_id_dtype
from sagann.graph.topology import Topology
from sagann.kernels.edge.function import EdgeFunction, End
from sagann.kernels.edge.work import Grain, most_items, most_slots, most_splits
from sagann.kernels.packed import packed_bytes
from sagann.plan.gradients import Gradients
from sagann.plan.intervals import PartIntervals
from sagann.plan.steps import ALL, Block, uncut_ends

CSC, CSR, NUMBERED = "csc", "csr", "numbered csr"
"Forms of a chunk: edges by destination, edges by source, and edges by source with their ids."
PICKED_CSC = "csc of picked sources"
PICKED_CSR, PICKED_NUMBERED = "csr of picked destinations", "numbered csr of picked"
"The same forms, with ids that count only the rows of the other end that the chunk needs."
PICKED: Mapping[str, str] = {CSC: PICKED_CSC, CSR: PICKED_CSR, NUMBERED: PICKED_NUMBERED}
"The form with picked rows, by the form with all rows."
ReadData = Mapping[End, tuple[str, ...]]
"Names of the edge data that passes read, by the end by which they group edges."
KeptForms = Mapping[tuple[bool, bool], tuple[str, ...]]
"The forms in which the chunks of a hop are kept, by the ends that are not cut."
SQUARE: KeptForms = {(False, False): (CSC, NUMBERED)}
"A grid that is cut at both ends."
SIDES: KeptForms = {(True, False): (CSC,), (False, True): (CSR,)}
"What passes read whose other ends are undivided: columns and rows of the grid."
CONSTANTS: KeptForms = {(False, False): (CSC,)}
"A grid over which nothing is computed but a forward."
# Offsets of a chunk that is read in place: int64.
_OFFSET_BYTES = 8
# A work item, a merge and a cut row on a device: int64 fields.
_ITEM_BYTES, _MERGE_BYTES, _SPLIT_BYTES = 40, 24, 8
# Chunk counts of this many grids are kept: a search tries about sixteen, and returns to the last ones.
_MOST_GRIDS = 16


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EdgesOfType:
    """The edges of one type in a topology. Vertices and in-degrees are those of the topology."""

    topology: Topology
    "Topology with the edges of all types."
    data: str
    "Name of the edge data that holds the types."
    type: int
    "Number of the type."

    def within(self, edges: slice) -> Tensor:
        """Positions of the type's edges in a range of the topology's edges: int64, ascending, from the range's start."""
        return (self.topology.edge_data[self.data][edges] == self.type).nonzero().squeeze(1)


Hop = Topology | EdgesOfType
"What a gather walks."


def topology_of(hop: Hop) -> Topology:
    """The topology that has the hop's edges."""
    return hop.topology if isinstance(hop, EdgesOfType) else hop


def gathered_hops(program: ModelProgram, hops: Sequence[Topology]) -> dict[int, Hop]:
    """The hops that a program's gathers walk, by number: topologies first, then the edges of single types."""
    of_types = [EdgesOfType(topology=hops[each.hop], data=each.data, type=each.type) for each in program.edge_types]
    numbered: list[Hop] = [*hops, *of_types]
    return {number: numbered[number] for number in sorted({gather.hop for gather in program.gathers})}


def read_data(program: ModelProgram) -> dict[int, ReadData]:
    """The edge data that a program's passes over each hop read, whatever is trained.

    By destination, these are the data that forwards read: a backward reads no others. By source, they are the data that some gradient reads.
    """
    found: dict[int, dict[End, set[str]]] = {gather.hop: {"dst": set(), "src": set()} for gather in program.gathers}
    gradients = Gradients(program, wanted_x=not program.x_is_constant).recomputing()
    for gather in program.gathers:
        names = dict(zip(gather.edges.stage.inputs, gather.inputs, strict=True))

        def read(function: EdgeFunction, names: Mapping[str, str] = names) -> set[str]:
            return {names[given.name] for given in function.inputs if given.side == "edge"}

        found[gather.hop]["dst"] |= read(gradients.function(gather))
        found[gather.hop]["src"] |= set().union(*(read(step.function) for step in gradients.passes(gather)))
    return {number: {at: tuple(sorted(names)) for at, names in read.items()} for number, read in found.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class HopSize:
    """Numbers from which the bytes of a hop's chunks follow."""

    num_edges: int
    "Number of edges in the whole hop."
    edges: Mapping[tuple[int, int], int]
    "Number of edges of each chunk that has any, by source and destination interval."
    id_bytes: int
    "Bytes of a vertex id in the whole hop."
    data_bytes: Mapping[End, tuple[int, ...]] = field(default_factory=dict)
    "Bytes per edge of each tensor of edge data that chunks have, by the end by which their edges are grouped."
    grain: Grain | None = None
    """How kernels cut a pass into work items, where the items are copied to the device with the edges; None where the items
    stay on the host."""
    are_topologies: bool = False
    "Whether chunks are read in place, as topologies: ids and offsets are wider, and edges in CSR have ids."
    needed: Mapping[tuple[str, int, int], int] = field(default_factory=dict)
    """Number of rows of the other end that a chunk needs, where these may be picked, by form (csc or csr, of picked rows),
    source interval and destination interval."""

    @classmethod
    def of(cls, topology: Topology, edges: Mapping[tuple[int, int], int]) -> HopSize:
        """Describe a topology whose chunks have the given numbers of edges, and no edge data."""
        return cls(num_edges=topology.num_edges, edges=edges, id_bytes=topology.indices.element_size())

    def with_data(self, topology: Topology, read: ReadData) -> HopSize:
        """With the edge data of the topology that passes read."""
        rows = {at: [topology.edge_data[name] for name in names] for at, names in read.items()}
        each = {at: tuple(data.element_size() * data[:1].numel() for data in found) for at, found in rows.items()}
        return replace(self, data_bytes=each)

    def chunk_bytes(self, rows: Mapping[int, int], src: int, dst: int, form: str) -> int:
        """Bytes of a chunk in one of the forms above; ``rows`` has the number of vertices of each interval, and of all."""
        edges = self.edges[src, dst]
        near, far = (rows[dst], rows[src]) if end_of(form) == "dst" else (rows[src], rows[dst])
        position_bytes = id_dtype(edges).itemsize
        offset_bytes = _OFFSET_BYTES if self.are_topologies else position_bytes
        id_bytes = self.id_bytes if self.are_topologies else local_id_dtype(far).itemsize
        has_ids = form in (NUMBERED, PICKED_NUMBERED) or (form == CSR and self.are_topologies)
        grouped = packed_bytes(
            [
                offset_bytes * (near + 1),
                edges * id_bytes,
                *(edges * each for each in self.data_bytes.get(end_of(form), ())),
                *([] if self.grain is None else self._cut_bytes(near, edges, self.grain)),
            ]
        )
        return grouped + (packed_bytes([edges * position_bytes]) if has_ids else 0)

    def with_sides(self, part: PartIntervals) -> HopSize:
        """With the chunks of passes whose other ends are undivided as well, if any are."""
        if not part.undivided:
            return self
        found = Counter[tuple[int, int]]()
        for (src, dst), count in self.edges.items():
            found[ALL, dst] += count
            found[src, ALL] += count
        return replace(self, edges={**self.edges, **found})

    def kept_bytes(self, part: PartIntervals, forms: KeptForms) -> int:
        """Bytes of all chunks in all forms in which they are kept."""
        rows = part.rows
        return sum(
            self.chunk_bytes(rows, *at, form) for at in self.edges for form in forms.get(uncut_ends(*at), ())
        )

    def may_pick(self, chunk: Block) -> bool:
        """Whether rows may be picked for a chunk."""
        return _needed_key(chunk) in self.needed

    def num_picked(self, chunk: Block) -> int:
        """Number of rows of the other end that are picked for a chunk."""
        return self.needed[_needed_key(chunk)]

    def _cut_bytes(self, rows: int, edges: int, grain: Grain) -> list[int]:
        """Most bytes of the arrays of :class:`sagann.kernels.edge.gpu.cut.Cut`: items, cut rows, merges of both."""
        items, slots = most_items(rows, edges, grain), most_slots(rows, edges, grain)
        splits = most_splits(rows, edges, grain)
        merges = _MERGE_BYTES * (splits + most_merged(slots) + most_merged(items) + 1)
        return [_ITEM_BYTES * items, _SPLIT_BYTES * splits, merges]


def hop_size(hop: Hop, bounds: Sequence[int]) -> HopSize:
    """Sizes of the chunks that bounds would make. They are counted once for the same bounds.

    Raises:
        LayerError: the edges were overwritten.
    """
    # Imported here: it loads Numba.
    from sagann.graph.chunk_counts import chunk_counts

    topology = topology_of(hop)
    topology.require_unwritten()
    of_type = (hop.data, hop.type) if isinstance(hop, EdgesOfType) else None
    kept: OrderedDict[object, HopSize] = topology.derived(("hop_sizes", of_type), OrderedDict)
    # Types may be changed in place.
    key = tuple(bounds), None if of_type is None else version_of(topology.edge_data[of_type[0]])
    size = kept.pop(key, None)
    if size is None:
        found = chunk_counts(topology, bounds, of_type)
        edges = {(src, dst): int(found[src, dst]) for dst, src in found.T.nonzero().tolist()}
        size = HopSize.of(topology, edges)
    kept[key] = size
    if len(kept) > _MOST_GRIDS:
        kept.popitem(last=False)
    return size


def kept_forms(part: PartIntervals, *, of_constants: bool = False) -> KeptForms:
    """The forms in which the chunks of a hop are kept, for epochs, or for gathers that are the same in every epoch."""
    if part.undivided:
        return CONSTANTS if of_constants else SIDES
    return SQUARE


def end_of(form: str) -> End:
    """The end by which a chunk's edges are grouped."""
    return "dst" if form in (CSC, PICKED_CSC) else "src"


def most_merged(slots: int) -> int:
    """Most slots that a tree of merges adds to the given slots: two groups of a row that has just more than one of them."""
    return slots // 16 + 2


def _needed_key(chunk: Block) -> tuple[str, int, int]:
    return PICKED_CSC if end_of(chunk.name) == "dst" else PICKED_CSR, chunk.interval, chunk.dst_interval
