"""Choose the base model that a node draws pictures with next, and the one that it fetches meanwhile.

A node holds base models in tiers: in GPU memory, in the memory of its host, on its disk. Pictures go to a node that
holds their base in GPU memory. What no such node takes may be loaded from a slower tier, after a bounded delay
(delay scheduling: M. Zaharia et al., "Delay Scheduling: A Simple Technique for Achieving Locality and Fairness in
Cluster Scheduling", EuroSys 2010). Where no live node holds the base, nobody waits for the delay.

A lease out of `relief_every` goes to the oldest picture whatever the node holds, once it has waited longer than the
delay. The bound is a share of the leases. An age as the bound would turn the policy into first in, first out as soon
as the whole queue is older than that, and it would stay so: models would be loaded for almost every lease.

Models are fetched from storage while the GPU draws with others. So a lease never names a model that the node would
have to fetch first; `prefetch` names it as a hint instead. The claims of the server and the simulator both ask these
functions.
"""

import hashlib
from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

PIXEL_STEPS_PER_S = 5_000_000
"""Work of a node in a second, by which the work that waits is told in seconds. An assumption: a picture of 1024 x
1024 pixels and 30 steps takes some 6 seconds on a consumer GPU."""


class Tier(IntEnum):
    """The fastest place where a node holds a model, fastest first."""

    GPU = 0
    HOST = 1
    DISK = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBases:
    """The base models that one node holds, by tier, and the one that it is fetching now."""

    gpu: Collection[str] = ()
    host: Container[str] = ()
    disk: Container[str] = ()
    fetching: str | None = None

    def tier_of(self, base_key: str) -> Tier | None:
        """Return the fastest tier in which the node holds the base; None when it does not, or not yet."""
        for tier, keys in ((Tier.GPU, self.gpu), (Tier.HOST, self.host), (Tier.DISK, self.disk)):
            if base_key in keys:
                return tier
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """The number of live nodes whose fastest copy of a base is in each tier, and of those that are fetching it."""

    gpu: int = 0
    host: int = 0
    disk: int = 0
    fetching: int = 0

    @property
    def replicas(self) -> int:
        """The nodes that can draw with the base without fetching it, or will soon."""
        return self.gpu + self.host + self.disk + self.fetching

    def faster_than(self, tier: Tier) -> int:
        """Return the number of nodes that hold the base in a faster tier."""
        return (self.gpu if tier > Tier.GPU else 0) + (self.host if tier > Tier.HOST else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseDemand:
    """The pictures that wait for one base: the instant and the turn of the first one, and the seconds that all take
    one node. Turns are those of a fair queue; where all are equal, the instants decide."""

    base_key: str
    oldest_at_ms: int
    work_s: float
    turn: int = 0


class PictureDemand(Protocol):
    """The pictures that wait, as a claim sees them. Each call costs one probe of an index, however long the queue."""

    def of_base(self, base_key: str) -> BaseDemand | None:
        """Return what waits for this base; None when nothing does."""

    def by_turn(self) -> Iterable[BaseDemand]:
        """Iterate over the distinct bases with pictures that wait, by the turn of their first picture."""

    def holders(self, base_key: str) -> Holders:
        """Return the number of live nodes that hold the base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingPolicy:
    """The numbers of the policy.

    `delay_s`: a picture waits so long for a node that holds its base in a faster tier. One lease in `relief_every`
    goes to the oldest picture. Another node loads or fetches a base when the work that waits takes those that hold it
    longer than `replicate_s`, or when a picture has waited for `patience_s`. A file of `large_bytes` and more that
    pictures need besides their base is fetched under `giornata.domain.generation.large_files.may_fetch`.
    """

    delay_s: float = 20.0
    relief_every: int = 16
    replicate_s: float = 60.0
    patience_s: float = 300.0
    large_bytes: int = 500_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseChoice:
    """The base to draw with, and the fastest tier in which the node holds it."""

    base_key: str
    tier: Tier


def is_relief(request_id: str, policy: RoutingPolicy) -> bool:
    """Return True for the share of claims that take the oldest picture. A repeated request gets the same answer."""
    first = hashlib.sha256(request_id.encode()).digest()[:8]
    return int.from_bytes(first, "big") % policy.relief_every == 0


def choose(
    held: HeldBases, demand: PictureDemand, *, now_ms: int, relief: bool = False, policy: RoutingPolicy
) -> BaseChoice | None:
    """Return the base for a node's next lease; None when the node does best to wait."""
    return next(choices(held, demand, now_ms=now_ms, relief=relief, policy=policy), None)


def choices(
    held: HeldBases, demand: PictureDemand, *, now_ms: int, relief: bool = False, policy: RoutingPolicy
) -> Iterator[BaseChoice]:
    """Yield the bases that a node may draw with next, the best first. A base may come twice.

    A lease takes the first one. The others are for a node that may not have the pictures of the first one. A picture
    of a base that the node holds is refused for `delay_s` at most, and only while other live nodes hold the base in a
    faster tier and are enough for the work that waits. Bases in GPU memory come first, then those in host memory,
    then those on disk, each by turn.
    """
    if relief:
        yield from _held_and_late(held, demand, now_ms=now_ms, policy=policy)
    hot = [waiting for key in held.gpu if (waiting := demand.of_base(key)) is not None]
    for waiting in sorted(hot, key=lambda each: (each.turn, each.oldest_at_ms, each.base_key)):
        yield BaseChoice(base_key=waiting.base_key, tier=Tier.GPU)
    on_disk = []
    for waiting in demand.by_turn():
        tier = held.tier_of(waiting.base_key)
        if tier is None or tier is Tier.GPU:
            continue
        if _is_due(waiting, demand, tier, now_ms=now_ms, policy=policy):
            choice = BaseChoice(base_key=waiting.base_key, tier=tier)
            if tier is Tier.DISK:
                on_disk.append(choice)
            else:
                yield choice
    yield from on_disk


def prefetch(held: HeldBases, demand: PictureDemand, *, now_ms: int, policy: RoutingPolicy) -> str | None:
    """Return the base that the node should fetch while its GPU works; None for none, or while it fetches another.

    A base that no node holds is fetched by one node. Others follow when those that hold it are too few for the work,
    or one at a time when they have let its first picture wait for `patience_s`: they may be busy with other work.
    """
    if held.fetching is not None:
        return None
    for waiting in demand.by_turn():
        if held.tier_of(waiting.base_key) is not None:
            continue
        holders = demand.holders(waiting.base_key)
        too_few = holders.replicas == 0 or waiting.work_s > holders.replicas * policy.replicate_s
        if too_few or (not holders.fetching and _waited_s(waiting, now_ms) >= policy.patience_s):
            return waiting.base_key
    return None


def _is_due(waiting: BaseDemand, demand: PictureDemand, tier: Tier, *, now_ms: int, policy: RoutingPolicy) -> bool:
    """Return True when a node that holds the base in this tier need not leave it to nodes with a faster one."""
    if _waited_s(waiting, now_ms) >= policy.delay_s:
        return True
    return waiting.work_s > demand.holders(waiting.base_key).faster_than(tier) * policy.replicate_s


def _held_and_late(
    held: HeldBases, demand: PictureDemand, *, now_ms: int, policy: RoutingPolicy
) -> Iterator[BaseChoice]:
    """Yield the bases that the node holds and whose first picture has waited too long, by turn."""
    for waiting in demand.by_turn():
        if _waited_s(waiting, now_ms) < policy.delay_s:
            continue
        if (tier := held.tier_of(waiting.base_key)) is not None:
            yield BaseChoice(base_key=waiting.base_key, tier=tier)


def _waited_s(waiting: BaseDemand, now_ms: int) -> float:
    return (now_ms - waiting.oldest_at_ms) / 1000
