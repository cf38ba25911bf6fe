"""Share the waiting jobs out among several fleets: each goes to the cheapest that can deliver in time."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from giornata.domain.fleets.capacity import Demand, InstanceView, Use, could_take, place, takes_now
from giornata.domain.fleets.fleet_plan import FleetView, ScalingPolicy
from giornata.domain.fleets.starts import never_comes, stopped

UNKNOWN_PRICE = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Bidder:
    """A fleet that could take jobs. `in_trouble`: its provider refuses, or is away."""

    view: FleetView
    policy: ScalingPolicy
    in_trouble: bool = False

    @property
    def price(self) -> int:
        """The price of one more node; the highest of all when the price is unknown."""
        price = self.view.price_micro_usd_per_hour
        return UNKNOWN_PRICE if price is None else price

    def free(self, now_ms: int) -> list[InstanceView]:
        """Return the fleet's nodes with free places, and those requested that can be expected to start."""
        staying = [each for each in self.view.instances if each.stays]
        going = [each for each in self.view.instances if not each.stays and not each.ended]
        expected = not self.in_trouble and not self.full(now_ms)
        unlisted = max(0, self.view.asked - len(going) - len(staying)) if expected else 0
        asked_ms = self.view.changed_at_ms or now_ms
        to_come = [
            InstanceView(id=f"to come {number}", offer=self.view.offer, asked_ms=asked_ms)
            for number in range(unlisted)
        ]
        able = (each for each in staying if each.room and not never_comes(each, self.policy, now_ms))
        return [*able, *to_come]

    def makes(self, group: Demand, instance: InstanceView, now_ms: int) -> bool:
        """Return True when such a job may go to this free instance, and its node is there before the deadline."""
        coming = instance.use is Use.NONE
        there_ms = max(now_ms, instance.asked_ms + round(self.policy.expected_startup_s * 1000)) if coming else now_ms
        in_time = group.deadline_at_ms is None or there_ms <= group.deadline_at_ms
        return in_time and takes_now(group, instance)

    def could_make(self, group: Demand, now_ms: int) -> bool:
        """Return True when the fleet has a node in time for the deadline, or could have one more."""
        new = could_take(group, self.view.offer, machine_id=None) and not _too_late(group, self, now_ms)
        return (new and self.room(now_ms) > 0) or any(self.makes(group, each, now_ms) for each in self.free(now_ms))

    def could_bring(self, group: Demand, now_ms: int) -> bool:
        """Return True when another machine that could take such a job may come.

        The machine may be on its way, one more, or a replacement.
        """
        coming = [each for each in self.free(now_ms) if each.use is Use.NONE]
        if any(takes_now(group, each) for each in coming):
            return True
        if not could_take(group, self.view.offer, machine_id=None):
            return False
        delivers = not self.in_trouble and not self.stopped(now_ms)
        replaces = self.view.moves and delivers and any(each.stays for each in self.view.instances)
        return replaces or self.room(now_ms) > 0

    def room(self, now_ms: int) -> int:
        """Return the number of further nodes that the fleet could have, as far as known; 0 when it cannot deliver."""
        ceiling, price = self.policy.max_price_micro_usd_per_hour, self.view.price_micro_usd_per_hour
        too_dear = ceiling is not None and price is not None and price > ceiling
        if self.in_trouble or too_dear or self.full(now_ms) or self.stopped(now_ms):
            return 0
        _, most = self.policy.bounds(now_ms)
        most = most if self.view.most_nodes is None else min(most, self.view.most_nodes)
        return max(0, most - self.view.asked)

    def stopped(self, now_ms: int) -> str:
        """Return the reason why the fleet requests no more nodes; see `domain.fleets.starts.stopped`."""
        staying = [each for each in self.view.instances if each.stays]
        return stopped(staying, self.view, self.policy, now_ms)

    def full(self, now_ms: int) -> bool:
        """Return True when the provider has had less than was asked of it for too long."""
        listed = len([each for each in self.view.instances if not each.ended])
        asked_since_ms = self.view.changed_at_ms or now_ms
        return listed < self.view.asked and now_ms - asked_since_ms > self.policy.startup_timeout_s * 1000


def share_demand(demand: Sequence[Demand], bidders: Sequence[Bidder], now_ms: int) -> dict[str, tuple[Demand, ...]]:
    """Every fleet's share, by its name.

    First what fleets have already, the cheaper ones before the dearer ones, but no node on its way that comes after
    a deadline which another one could meet; then what they could have more: of those whose nodes come in time for
    the deadline the cheapest, and the next one when that is full, too dear for its policy, or refused. What nobody
    can deliver counts for the cheapest that could, which says why it does not.
    """
    shares: dict[str, list[Demand]] = defaultdict(list)
    cheapest_first = sorted(bidders, key=lambda each: (each.price, each.view.name))
    left = list(demand)
    dated = [group for group in demand if group.deadline_at_ms is not None]
    pressing = [group for group in dated if any(each.could_make(group, now_ms) for each in bidders)]
    for bidder in cheapest_first:
        placed = place(left, bidder.free(now_ms), fits=_fits(bidder, pressing, now_ms))
        shares[bidder.view.name] += _taken(left, placed.left)
        left = placed.left
    room = {each.view.name: each.room(now_ms) * each.view.offer.places for each in cheapest_first}
    for group in sorted(left, key=lambda each: (each.deadline_at_ms is None, each.deadline_at_ms or 0)):
        _to_new_nodes(group, cheapest_first, room, shares, now_ms)
    return {name: tuple(_merged(groups)) for name, groups in shares.items()}


def _fits(bidder: Bidder, pressing: Collection[Demand], now_ms: int) -> Callable[[Demand, InstanceView], bool]:
    """Return the test for jobs that an instance takes; `pressing` jobs only when its node starts in time."""
    alike = {replace(group, jobs=0) for group in pressing}

    def fits(group: Demand, instance: InstanceView) -> bool:
        if replace(group, jobs=0) in alike:
            return bidder.makes(group, instance, now_ms)
        return takes_now(group, instance)

    return fits


def _to_new_nodes(
    group: Demand, bidders: Sequence[Bidder], room: dict[str, int], shares: dict[str, list[Demand]], now_ms: int
) -> None:
    able = [each for each in bidders if could_take(group, each.view.offer, machine_id=None)]
    jobs = group.jobs
    for bidder in sorted(able, key=lambda each: (_too_late(group, each, now_ms), each.price, each.view.name)):
        taken = min(jobs, room[bidder.view.name])
        if taken:
            shares[bidder.view.name].append(replace(group, jobs=taken))
            room[bidder.view.name] -= taken
            jobs -= taken
    if jobs and able:
        shares[able[0].view.name].append(replace(group, jobs=jobs))


def _too_late(group: Demand, bidder: Bidder, now_ms: int) -> bool:
    return (
        group.deadline_at_ms is not None and now_ms + bidder.policy.expected_startup_s * 1000 > group.deadline_at_ms
    )


def _taken(before: Sequence[Demand], after: Sequence[Demand]) -> list[Demand]:
    left = {replace(group, jobs=0): group.jobs for group in after}
    taken = ((group, group.jobs - left.get(replace(group, jobs=0), 0)) for group in before)
    return [replace(group, jobs=jobs) for group, jobs in taken if jobs]


def _merged(groups: Sequence[Demand]) -> list[Demand]:
    jobs: dict[Demand, int] = defaultdict(int)
    for group in groups:
        jobs[replace(group, jobs=0)] += group.jobs
    return [replace(group, jobs=count) for group, count in jobs.items()]
