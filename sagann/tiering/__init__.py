"""Data tiering: which rows of features lie in the fast tier. Pure algorithms: they open no file and no device."""

from sagann.tiering.cache import AnnouncingCache, Cache, Decision
from sagann.tiering.caches import CACHES
from sagann.tiering.look_ahead import LookAhead
from sagann.tiering.s3_fifo import S3Fifo
from sagann.tiering.static import Static

__all__ = ["CACHES", "AnnouncingCache", "Cache", "Decision", "LookAhead", "S3Fifo", "Static"]
