"""Features in tiers: hot rows in memory, cold rows where they are."""

from sagann.runtime.tiered.counters import TierCounts, Traffic
from sagann.runtime.tiered.features import TieredFeatures

__all__ = ["TierCounts", "TieredFeatures", "Traffic"]
