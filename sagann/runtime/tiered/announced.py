"""Batches that were announced to a tiered store: their ids, and a cache's decisions for those that it has passed.

Each batch has an announcement, an object that its loader keeps until it wants the rows. So several loops may use one store at the same
time, and none can take another one's rows. A batch is given up when nobody keeps its announcement any more.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from weakref import ReferenceType, ref

from sagann.errors import InputError
from sagann.tiering import AnnouncingCache, Cache, Decision
from sagann.tiering.cache import Array
from sagann.tiering.look_ahead import MOST_BATCHES


@dataclass(kw_only=True, slots=True, eq=False, weakref_slot=True)
class Announcement:
    """A batch whose rows will be asked for once. Dropping the object gives the batch up."""

    by: Announced | None
    "What the batch waits in; None after its rows were asked for."
    ids: Array
    "int64 [n]: the rows of the batch."
    decision: Decision | None = None
    "The cache's decision; None before it."


class Announced:
    """The announced batches of a store. The caller holds the lock of the store in every method.

    Args:
        cache: hears of the batches in their order, if it wants to.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._ahead = cache if isinstance(cache, AnnouncingCache) else None
        self._undecided: deque[ReferenceType[Announcement]] = deque()
        "The batches that the cache has not decided for, in the order in which they were announced."
        self._any_dropped = False
        "Whether one of these was given up. Python may notice that at any moment, so only this mark is made then."

    @property
    def is_ordered(self) -> bool:
        """Whether decisions depend on the order in which batches are announced."""
        return self._ahead is not None

    def add(self, ids: Array) -> Announcement:
        """Add a batch behind all others."""
        made = Announcement(by=self, ids=ids)
        if self._ahead is None:
            return made
        self._leave_out_dropped(self._ahead)
        if len(self._undecided) == MOST_BATCHES:
            raise InputError(
                f"too many batches are announced: {MOST_BATCHES} wait for rows_of, which is the limit (in "
                "TieredFeatures.announce)",
                hint="Ask for the rows of earlier batches first, or drop their announcements.",
            )
        self._ahead.announce(ids)
        self._undecided.append(ref(made, self._note_dropped))
        return made

    def take(self, announcement: Announcement) -> Array:
        """The ids of a batch, once."""
        if not isinstance(announcement, Announcement) or announcement.by is not self:
            is_given = isinstance(announcement, Announcement) and announcement.by is None
            raise InputError(
                "batch does not wait for its rows: "
                f"{'the rows of the announcement were given before' if is_given else 'no announcement of this store'} "
                "(in TieredFeatures.rows_of, announcement)",
                hint="Pass what announce(ids) returns, and each announcement once.",
            )
        announcement.by = None
        return announcement.ids

    def place(self, announcement: Announcement) -> Decision:
        """The cache's decision for a batch that was taken. Batches that were announced before it are decided first."""
        if self._ahead is None:
            return self._cache.place(announcement.ids)
        self._leave_out_dropped(self._ahead)
        while announcement.decision is None:
            decision, decided = self._ahead.place_next(), self._undecided.popleft()()
            if decided is not None:
                decided.decision = decision
        return announcement.decision

    def _note_dropped(self, _: ReferenceType[Announcement]) -> None:
        self._any_dropped = True

    def _leave_out_dropped(self, cache: AnnouncingCache) -> None:
        """Let the window be of batches that somebody still keeps."""
        if not self._any_dropped:
            return
        self._any_dropped = False
        left = [kept for each in self._undecided if (kept := each()) is not None]
        cache.withdraw()
        for kept in left:
            cache.announce(kept.ids)
        self._undecided = deque(ref(kept, self._note_dropped) for kept in left)
