"""Loading: batches are made ahead of the training step, in a pipeline of threads: mini-batches of one graph, batches of many graphs."""

from sagann.runtime.loading.graph_batches import GraphBatch, GraphBatches
from sagann.runtime.loading.minibatches import MiniBatches
from sagann.runtime.loading.pipeline import Pipeline, StageCounters, StalledError
from sagann.sampling import MiniBatch

__all__ = ["GraphBatch", "GraphBatches", "MiniBatch", "MiniBatches", "Pipeline", "StageCounters", "StalledError"]
