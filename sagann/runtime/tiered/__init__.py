"""Features in tiers: hot rows in memory or on devices, cold rows where they are; and edges where a device reads them."""

from sagann.runtime.device.cuda_devices import CudaDevices
from sagann.runtime.tiered.counters import TierCounts, Traffic
from sagann.runtime.tiered.device_features import DeviceFeatures
from sagann.runtime.tiered.device_sampler import DeviceSampler
from sagann.runtime.tiered.device_topology import DeviceTopology
from sagann.runtime.tiered.features import TieredFeatures

__all__ = [
    "CudaDevices",
    "DeviceFeatures",
    "DeviceSampler",
    "DeviceTopology",
    "TierCounts",
    "TieredFeatures",
    "Traffic",
]
