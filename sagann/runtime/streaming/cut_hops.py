"""Cut hops: the chunks that a streamed model's gathers go over, cut when a program first reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from sagann.compiler.model_program import ModelProgram
from sagann.graph.feature_store import version_of
from sagann.graph.topology import Topology
from sagann.plan.beside import Beside
from sagann.plan.grid import CUT_BYTES
from sagann.plan.hops import EdgesOfType, Hop, HopSize, KeptForms, gathered_hops, hop_size, kept_forms, topology_of
from sagann.plan.part_intervals import PartIntervals
from sagann.plan.selection import NEVER, Selection
from sagann.plan.steps import UNLIMITED
from sagann.runtime.blocks.backend import Backend
from sagann.runtime.blocks.chunks import Chunks
from sagann.runtime.blocks.spill import require_room
from sagann.runtime.streaming.capturing import edge_data_of, require_types


class CutHops:
    """The chunks of the hops that programs of one model walk, in files of the folder or in memory.

    The budget limits how many edges are cut at a time. The numbers of chunks differ from those of chunks that were cut before:
    calls under way still read them.
    """

    def __init__(
        self,
        hops: Sequence[Topology],
        *,
        budget_bytes: int,
        backend: Backend,
        beside: Beside,
        folder: Path | None,
        selection: Selection,
        numbers: Iterator[int],
    ) -> None:
        self._hops, self._budget_bytes = hops, budget_bytes
        self._folder = folder
        self._selection, self._numbers = selection, numbers
        self._grain, self._cutting = beside.grain, backend.cutting
        reads_in_place = budget_bytes >= UNLIMITED and not beside.copies_beside
        self._host = None if reads_in_place else backend.new_host(folder)
        # By topology, type, and what is kept.
        self._chunks: dict[object, Chunks] = {}
        # Versions of the edge data as it was cut, by identity.
        self._versions: dict[int, int] = {}

    def of(self, program: ModelProgram, part: PartIntervals, *, of_constants: bool = False) -> dict[int, Chunks]:
        """The chunks that the program's gathers go over, by numbers of hops; cut now, if there is room, where they are not yet.

        Args:
            part: the intervals, and what lies undivided.
            of_constants: whether to give the chunks of gathers that are the same in every epoch.
        Raises:
            LayerError: the edges of a hop were overwritten.
        """
        # Chunks that are cut already would go with the numbers of other edges.
        for topology in self._hops:
            topology.require_unwritten()
        require_types(program, self._hops)
        forms = kept_forms(part, of_constants=of_constants)
        hops = {number: (_key(hop, forms), hop) for number, hop in gathered_hops(program, self._hops).items()}
        missing = {key: hop for key, hop in hops.values() if key not in self._chunks}
        if self._folder is not None and missing:
            require_room(self._folder, sum(self._kept_bytes(hop, part, forms) for hop in missing.values()))
        for key, hop in missing.items():
            self._chunks[key] = Chunks(
                hop,
                part,
                self._host,
                next(self._numbers),
                NEVER if part.undivided else self._selection,
                self._cutting,
                forms=forms,
                most_edges=self._budget_bytes // CUT_BYTES,
            )
            self._note(topology_of(hop).edge_data.values())
        return {number: self._chunks[key] for number, (key, _) in hops.items()}

    def _kept_bytes(self, hop: Hop, part: PartIntervals, forms: KeptForms) -> int:
        size = hop_size(hop, part.bounds).with_sides(part)
        return replace(size, grain=self._grain).kept_bytes(part, forms)

    def close(self) -> None:
        """Forget all chunks."""
        if self._host is not None:
            self._host.close()

    def sizes(
        self, program: ModelProgram, part: PartIntervals, *, of_constants: bool = False
    ) -> dict[int, HopSize]:
        """The sizes of these chunks."""
        found = self.of(program, part, of_constants=of_constants)
        return {number: replace(chunks.size, grain=self._grain) for number, chunks in found.items()}

    def are_stale(self, program: ModelProgram) -> bool:
        """Whether edge data that the program reads was changed in place since it was first seen."""
        read = edge_data_of(program, self._hops)
        self._note(read)
        return any(self._versions[id(data)] != version_of(data) for data in read)

    def _note(self, read: Iterable[Tensor]) -> None:
        for data in read:
            self._versions.setdefault(id(data), version_of(data))


def _key(hop: Hop, forms: KeptForms) -> object:
    of_type = (hop.data, hop.type) if isinstance(hop, EdgesOfType) else None
    return id(topology_of(hop)), of_type, tuple(forms.items())
