"""The store's interface for routing pictures: the bases that pictures wait for, and the models that nodes hold."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from giornata.protocol.node.held_models import HeldTiers


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseQueue:
    """The queued pictures of one base, by the first of them.

    `min_vram_bytes` is the GPU memory that the first picture needs. `pixel_steps` are those of the first `sampled`
    pictures, `order_pictures` the pictures that the first one's order still has.
    """

    base_key: str
    order_id: str
    project_id: str
    priority: int
    turn: int
    waits_since_ms: int
    min_vram_bytes: int
    pixel_steps: int
    sampled: int
    order_pictures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeModelsRow:
    """A live node: the base keys in its GPU memory, and the version of its latest report, None without one."""

    node_id: str
    project_id: str
    seen_at_ms: int
    vram_bytes: int | None
    gpu: Sequence[str]
    version: int | None
    fetching: str | None


class RoutingQueries(Protocol):
    """Queries for the policy that routes pictures to nodes."""

    def base_queues(self, *, project_id: str | None) -> list[BaseQueue]:
        """Return each distinct base that queued pictures wait for, by priority and turn of its first picture.

        Reads a few rows of each base, however long the queue is. `project_id` None means every project's pictures.
        """

    def nodes(self, *, seen_since_ms: int) -> list[NodeModelsRow]:
        """Return the nodes that were heard of since then, draw pictures and are not to leave."""

    def held(self, node_ids: Collection[str]) -> Mapping[str, HeldTiers]:
        """Return the files of these nodes by tier; nodes without a report are left out."""

    def note_held(self, node_id: str, *, version: int | None, held: HeldTiers | None, fetching: str | None) -> None:
        """Keep what the node holds and fetches; None for `held` keeps the files and the version that are there."""

    def forget_silent(self, *, seen_before_ms: int, limit: int) -> int:
        """Delete what nodes held that were last heard of before this instant; return their number."""
