"""Training: Trainer, its configuration, its run folders. Functions import Numba and other modules that most runs do not need."""

from sagann.config import TrainConfig
from sagann.train.contract import Contract
from sagann.train.link_metrics import filtered_ranks, link_metrics, link_ranks, rank_metrics
from sagann.train.losses import LOSSES, LossFunction
from sagann.train.metrics import METRICS, GatheredMetric, MetricFunction, Metrics
from sagann.train.policies import DECAY_POLICIES
from sagann.train.predictor import Predictor
from sagann.train.reopen import load_run, read_run
from sagann.train.reporter import EpochProgress, EpochRecord, History, LogReporter, Reporter, RunInfo, TrainResult
from sagann.train.run import Run
from sagann.train.trainer import Trainer

__all__ = [
    "DECAY_POLICIES",
    "LOSSES",
    "METRICS",
    "Contract",
    "EpochProgress",
    "EpochRecord",
    "GatheredMetric",
    "History",
    "LogReporter",
    "LossFunction",
    "MetricFunction",
    "Metrics",
    "Predictor",
    "Reporter",
    "Run",
    "RunInfo",
    "TrainConfig",
    "TrainResult",
    "Trainer",
    "filtered_ranks",
    "link_metrics",
    "link_ranks",
    "load_run",
    "rank_metrics",
    "read_run",
]
