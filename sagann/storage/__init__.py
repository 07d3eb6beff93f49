"""Graphs on disk: our own folder format, and what imports into it. Importers load their libraries when used."""

from sagann.storage.dataset import check_dataset, dataset_info, open_graph, save_graph
from sagann.storage.load import load_graph
from sagann.storage.npz_graph import read_npz

__all__ = ["check_dataset", "dataset_info", "load_graph", "open_graph", "read_npz", "save_graph"]
