"""What the package registers with its lower layers, which may not import the higher ones.

Names only ("module:attribute"); a lower layer imports what a name stands for when it first needs it.
"""

from __future__ import annotations

DEFAULTS: dict[str, str] = {}
"""``"engine"``: who runs layers unless :func:`sagann.saga.set_engine` says otherwise."""
