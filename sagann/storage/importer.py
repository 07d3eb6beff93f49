"""What all imports share: read vertex arrays and edges from a source, check them, and make a dataset or a graph.

An importer fills an :class:`sagann.storage.import_source.ImportSource`. :func:`import_dataset` streams the source into a folder in
bounded memory; :func:`sagann.storage.read_source.graph_of` reads the source into memory. So every format has the same options and
checks, and a kill leaves no half dataset.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from sagann.errors import DatasetError
from sagann.graph import validate_graph
from sagann.graph.graph import names_of
from sagann.storage.dataset import map_dataset
from sagann.storage.edge_source import EdgeSource
from sagann.storage.folder import new_folder
from sagann.storage.import_source import READING, ImportOptions, ImportSource, naming
from sagann.storage.manifest import EdgeTreatment, Manifest, write_manifest
from sagann.storage.npy import NpyWriter
from sagann.storage.vertex_arrays import VertexArrays

if TYPE_CHECKING:
    from sagann.storage.edge_spool import EdgeSpool

# Ids that are larger than so many times the number of edges (plus 2^20) are refused: they are probably hashes.
_MOST_VERTICES_PER_EDGE = 64


def import_dataset(source: ImportSource, out: str | os.PathLike[str], options: ImportOptions) -> None:
    """Stream a source into a dataset folder, in bounded memory and atomically.

    Raises:
        DatasetError: a value of the source is wrong, or the disk is too small. The message about a value names its file
            and row; if only the whole graph shows the error, the message names the vertex or edge. No file is left
            behind.
    """
    # Imported here, so that a caller that only opens a dataset does not wait until Numba compiles or loads its kernels.
    from sagann.storage.external_sort import ExternalSort

    symmetrise = options.symmetrise or source.undirected_once
    with new_folder(out, overwrite=options.overwrite) as folder:

        def open_array(name: str, dtype: str, row_shape: tuple[int, ...] = ()) -> NpyWriter:
            return NpyWriter(folder / f"{name}.npy", dtype, row_shape)

        vertices = VertexArrays(source, options, open_array)
        spool, num_vertices = _spool(folder, source.edges, vertices, options, mirrors=symmetrise)
        edges = ExternalSort(
            spool,
            num_vertices=num_vertices,
            merge=options.coalesce,
            memory_bytes=options.memory_bytes,
            folder=folder,
            open_array=open_array,
            progress=options.progress,
        ).run()
        manifest = Manifest(
            name=options.name or source.name,
            num_vertices=num_vertices,
            num_edges=edges["indices"].shape[0],
            num_features=vertices.num_features,
            features=vertices.layout,
            **vertices.answers,
            num_edge_types=count_types(source, spool.largest_type),
            edge_data=tuple(source.edges.columns),
            num_graphs=1 if source.graph_ptr is None else len(source.graph_ptr) - 1,
            **names_of(source),
            edges=EdgeTreatment(
                symmetrised=symmetrise,
                coalesced=options.coalesce or symmetrise,
                self_loops_dropped=options.drop_self_loops,
            ),
            source=source.description,
            arrays={**vertices.arrays, **edges},
        )
        write_manifest(folder, manifest)
        with naming(source):
            validate_graph(map_dataset(folder, manifest))


def _spool(
    folder: Path, source: EdgeSource, vertices: VertexArrays, options: ImportOptions, *, mirrors: bool
) -> tuple[EdgeSpool, int]:
    """Spool the edges; return the spool and the number of vertices."""
    from sagann.storage.edge_spool import EdgeSpool

    # An estimate: ids that need 8 bytes are rare, so each id counts 4 bytes.
    record_bytes = 8 + sum(column.row_bytes for column in source.columns.values())
    copies = 2 if mirrors else 1
    if source.num_edges is not None:
        _check_space(folder, source.num_edges * record_bytes * (1 + copies))
    spool = EdgeSpool(
        folder / "edges-0.tmp",
        columns=source.columns,
        num_vertices=vertices.num_vertices,
        rows_of=vertices.rows_of,
        drop_self_loops=options.drop_self_loops,
        mirrors=mirrors,
        block_edges=max(1024, min(2**22, options.memory_bytes // (8 * record_bytes))),
    )
    num_read = 0
    for chunk in source.chunks():
        spool.add(chunk)
        # Self-loops that are dropped were read as well.
        num_read += len(chunk.src)
        options.progress(num_read, source.num_edges, "edges", READING)
    count = vertices.num_vertices
    if count is None:
        count = count_by_ids(spool.largest_id, spool.num_edges, str(folder.parent))
    spool.finish(count)
    _check_space(folder, 8 * count + spool.num_edges * copies * record_bytes)
    return spool, count


def count_by_ids(largest_id: int, num_edges: int, where: str) -> int:
    """Number of vertices: one more than the largest id. Refuse ids that do not count from 0, such as hashes."""
    if largest_id + 1 > _MOST_VERTICES_PER_EDGE * num_edges + 2**20:
        raise DatasetError(
            "vertex ids are not numbered from 0",
            value=f"the largest is {largest_id}, with {num_edges} edges",
            where=where,
            fix="Number the vertices from 0 without gaps (pandas.factorize does), or state num_vertices "
            "(--num-vertices) if there are so many.",
        )
    return largest_id + 1


def count_types(source: ImportSource, largest_type: int) -> int:
    """Number of edge types: the stated one, which no type may exceed, or one more than the largest type."""
    if "type" not in source.edges.columns:
        return 0
    found, stated = largest_type + 1, source.num_edge_types
    if stated is not None and found > stated:
        raise DatasetError(
            "edge type out of range",
            value=f"{largest_type}, but there are {stated} types, numbered from 0",
            where=source.name,
            fix="State the right number of edge types.",
        )
    return found if stated is None else stated


def _check_space(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise DatasetError(
            "disk is too small for this import",
            value=f"about {needed_bytes / 2**30:.1f} GiB are needed, temporary files included, "
            f"{free_bytes / 2**30:.1f} GiB are free",
            where=str(folder.parent),
            fix="Free some space, or choose another disk; nothing was left behind.",
        )
