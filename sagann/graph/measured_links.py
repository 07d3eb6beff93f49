"""MeasuredLinks: links that a model is measured by, each with negative ones that it is ranked among."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sagann.errors import InputError
from sagann.graph.answers import Answers
from sagann.graph.checks import check_ids, check_types, numbered, require_array, wrong_form
from sagann.graph.rows import Arrays


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MeasuredLinks(Arrays):
    """Links to measure a model by, where links are learned: positive ones, and for each of them negative ones.

    Example:
        >>> links = MeasuredLinks(
        ...     src=torch.tensor([0, 1]),
        ...     dst=torch.tensor([2, 3]),
        ...     negatives=torch.tensor([[1, 3], [0, 2]]),
        ...     splits={"val": torch.tensor([True, False]), "test": torch.tensor([False, True])},
        ... )
        >>> links
        MeasuredLinks(num_links=2, num_negatives=2, splits=('val', 'test'))
    """

    src: Tensor
    "Sources of the positive links, int64 [num_links]."
    dst: Tensor
    "Their destinations, int64 [num_links]."
    negatives: Tensor
    """Destinations of negative links from the same sources, int64 [num_links, num_negatives], at least one for each link: the positive link is ranked
    among these."""
    types: Tensor | None = None
    "Edge types of the links, those of the negative ones too, int64 [num_links]; None for a graph without edge types."
    splits: Mapping[str, Tensor] = field(default_factory=dict)
    "Disjoint masks, bool [num_links], by name: 'train', 'val', 'test'."
    undirected: bool = True
    "Whether a link and its reverse are one: neither is drawn as a negative link to learn from where the graph has the other one."

    def __post_init__(self) -> None:
        hint, one = "Pass ids with .to(torch.int64).", "[num_links]"
        several = "[num_links, num_negatives]"
        for name, form in {"src": one, "dst": one, "types": one, "negatives": several}.items():
            ids, where = getattr(self, name), f"MeasuredLinks.{name}"
            if name == "types" and ids is None:
                continue
            require_array(ids, (torch.int64,), form, where=where, hint=hint)
            if len(ids) != len(self.src) or 0 in ids.shape[1:]:
                expected = f"torch.int64 {form}, at least one of them for each link"
                raise wrong_form(ids, expected, where=where, hint=hint)
        self.answers("")
        for name, mask in self.splits.items():
            where = f"MeasuredLinks.splits[{name!r}]"
            require_array(mask, (torch.bool,), one, where=where, hint="Pass a mask over the links.")

    @property
    def num_links(self) -> int:
        """Number of positive links."""
        return len(self.src)

    @property
    def num_negatives(self) -> int:
        """Number of negative links that each one is ranked among."""
        return int(self.negatives.shape[1])

    def answers(self, owner: str) -> Answers:
        """The links as units of the one class 0, the place of the positive link among its scores and those of its negative ones.

        ``owner`` is the name of the graph, for errors.
        """
        labels = torch.zeros(self.num_links, dtype=torch.int64, device=self.src.device)
        return Answers(
            unit="link", count=self.num_links, owner=owner, labels=labels, num_classes=1, splits=self.splits
        )

    def arrays(self) -> Iterator[tuple[str, Tensor]]:
        """The arrays, each with a name."""
        for name in ("src", "dst", "negatives", "types"):
            if getattr(self, name) is not None:
                yield f"links.{name}", getattr(self, name)
        for name, mask in sorted(self.splits.items()):
            yield f"links.split_{name}", mask

    def check(self, num_vertices: int, num_edge_types: int, *, where: str) -> None:
        """Refuse an end that is no vertex, and a type that is none of the graph's; ``where`` names the links, for the error."""
        for name, ids in (("src", self.src), ("dst", self.dst)):
            check_ids(ids, num_vertices, "vertex", where=numbered(f"{name} of {where}", "link"))
        negatives = self.negatives.flatten()
        check_ids(negatives, num_vertices, "vertex", where=numbered(f"negatives of {where}", "position"))
        if (self.types is None) != (num_edge_types == 0):
            raise InputError(
                f"links and edges differ in having types: {'no types' if self.types is None else 'types'} of "
                f"links, {num_edge_types} types of edges (in {where})",
                hint="Pass the type of each link where edges have types, and none where they have none.",
            )
        if self.types is not None:
            check_types(self.types, num_edge_types, where=numbered(f"types of {where}", "link"))

    def __repr__(self) -> str:
        return f"MeasuredLinks(num_links={self.num_links}, num_negatives={self.num_negatives}, splits={tuple(self.splits)})"
