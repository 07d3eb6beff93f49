"""Loading: mini-batches are sampled, loaded and copied to the device ahead of the training step, in a pipeline of threads."""

from sagann.runtime.loading.minibatch import MiniBatch
from sagann.runtime.loading.minibatches import MiniBatches
from sagann.runtime.loading.pipeline import Pipeline, StageCounters, StalledError

__all__ = ["MiniBatch", "MiniBatches", "Pipeline", "StageCounters", "StalledError"]
