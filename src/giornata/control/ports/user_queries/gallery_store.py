"""The store's interface for the gallery: what orders are found by, and the stars and tags of pictures.

A page reads a bounded number of rows of one index. Rows that do not fit the other conditions come with `fits` False,
so that a rare combination costs more pages and no page costs more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from giornata.control.ports.node_queries.picture_store import PictureKey, PictureRow
from giornata.control.ports.user_queries.records import JobInShort


class GalleryPlace(NamedTuple):
    """A place in the gallery, which has the newest orders first, and the pictures of an order by number."""

    ordered_at_ms: int
    order_id: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GalleryWanted:
    """The pictures that are looked for. `terms` and `tags` must all be there; the first of them leads the search."""

    project_id: str
    terms: Sequence[str]
    tags: Sequence[str] = ()
    since_ms: int = 0
    until_ms: int | None = None
    behind: GalleryPlace | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GallerySpan:
    """The pictures of one order with the numbers from `first` to `last`. `fits` is False for pictures that the search
    excludes."""

    order: JobInShort
    ordered_at_ms: int
    first: int
    last: int
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTerms:
    """The words by which one order is found."""

    order_id: str
    project_id: str
    ordered_at_ms: int
    terms: Sequence[str] = field(default_factory=tuple)


class PictureGallery(Protocol):
    """Queries that find pictures, and change their stars and tags."""

    def add_terms(self, orders: Sequence[SearchTerms]) -> None:
        """Insert the terms of new orders."""

    def orders(self, wanted: GalleryWanted, *, limit: int) -> list[GallerySpan]:
        """Return at most `limit` orders by the first term, newest first. That of the place `behind` comes first with
        what is left of it."""

    def tagged(self, wanted: GalleryWanted, *, limit: int) -> list[GallerySpan]:
        """Return at most `limit` pictures by the first tag, one a span, behind the place."""

    def pictures(self, numbers: Sequence[tuple[str, int, int]], *, project_id: str) -> list[PictureRow]:
        """Return pictures by order and number. Each element is an order, its first and its last number."""

    def tags(self, keys: Sequence[PictureKey]) -> dict[PictureKey, list[str]]:
        """Return the tags of these pictures, in the order of the alphabet; pictures without any are left out."""

    def add_tags(
        self, keys: Sequence[PictureKey], tags: Sequence[str], *, project_id: str, created_by: str | None
    ) -> int:
        """Give these pictures the tags, in the name of this person or key; return how many tags are new. Pictures of
        other projects are passed over."""

    def remove_tags(self, keys: Sequence[PictureKey], tags: Sequence[str], *, project_id: str) -> int:
        """Take the tags from these pictures; return how many there were."""

    def take_bytes(self, keys: Sequence[PictureKey], *, project_id: str) -> dict[str, int]:
        """Note that these pictures have no bytes any more, and take their tags; return sizes by key in storage."""
