"""Training on whole graphs: Trainer, its configuration, its run folders."""

from sagann.train.checkpoint import Checkpoint, CheckpointFolder
from sagann.train.config import TrainConfig
from sagann.train.contract import Contract
from sagann.train.metrics import METRICS, Metrics, compute_metrics
from sagann.train.policies import DECAY_POLICIES
from sagann.train.predictor import Predictor
from sagann.train.reporter import EpochRecord, LogReporter, Reporter, Reporters, RunInfo, TrainResult
from sagann.train.run import Run, load_run, read_run
from sagann.train.trainer import Trainer

__all__ = [
    "DECAY_POLICIES",
    "METRICS",
    "Checkpoint",
    "CheckpointFolder",
    "Contract",
    "EpochRecord",
    "LogReporter",
    "Metrics",
    "Predictor",
    "Reporter",
    "Reporters",
    "Run",
    "RunInfo",
    "TrainConfig",
    "TrainResult",
    "Trainer",
    "compute_metrics",
    "load_run",
    "read_run",
]
