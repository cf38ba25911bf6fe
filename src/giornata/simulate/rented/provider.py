"""A provider of rented machines that may vanish: the port of drivers, played on the virtual clock.

Facts are those that a vendor published (100 replicas over a week): how long instances take to run; that only those
that run are billed, by the second; that what was lost is replaced by itself; that the old container may run on beside
its replacement; that a reallocated machine does not come back for 48 hours; the limits of its API.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from giornata.control.ports.fleet import Instance, InstanceState, Limits, Price
from giornata.domain.billing.money import MS_PER_HOUR
from giornata.domain.errors import FleetUnavailable, InstanceGone
from giornata.simulate.agenda import Agenda
from giornata.simulate.draws import PUBLISHED_START_MIN, by_curve, exponential_s, rng
from giornata.simulate.rented.machines import MachinePool, SimulatedMachine
from giornata.simulate.results.billed_time import BilledTime, InstanceTimer


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedOffer:
    """The nodes that the provider offers, and the provider's behavior.

    `mtbi_s` is the mean time until a running instance is interrupted; of these the share `zombies` runs on unseen.
    `spike` multiplies the price between two moments (seconds from the beginning).
    """

    name: str = "rented"
    price_micro_usd_per_hour: int = 324_000
    machines: str = "machine"  # what they are called
    pool: MachinePool = field(default_factory=MachinePool)
    most_nodes: int = 1000
    start_min: tuple[tuple[float, float], ...] = PUBLISHED_START_MIN
    mtbi_s: float = 60 * 3600.0
    zombies: float = 0.1
    zombie_s: float = 900.0
    requests_per_minute: int = 240
    reallocations_per_minute: int = 10
    excluded_s: float = 48 * 3600.0
    spike: tuple[float, float, float] | None = None  # from, to, times


@dataclass(slots=True)
class Container:
    """One instance: on a machine, from its allocation to its end."""

    id: str
    machine: SimulatedMachine
    running_since_ms: int | None = None
    ended_at_ms: int | None = None
    account: InstanceTimer | None = None
    restarts: int = 0
    node: "SimulatedNode | None" = None

    @property
    def state(self) -> InstanceState:
        return InstanceState.STARTING if self.running_since_ms is None else InstanceState.RUNNING


class SimulatedNode:
    """The process in a container, as far as the provider can act on the process."""

    def begin(self) -> None:
        """Start when the container begins to run."""
        raise NotImplementedError

    def vanish(self, *, lives_on_s: float) -> None:
        """The container is taken away. The process may live on for a while, unbilled."""
        raise NotImplementedError


Settle = Callable[[Container], SimulatedNode]


class ModeledFleet:
    """A simulated provider that implements `giornata.control.ports.fleet.FleetDriver`."""

    def __init__(
        self, offer: SimulatedOffer, *, agenda: Agenda, seed: int, billed_time: BilledTime, settle: Settle
    ) -> None:
        self.offer, self._agenda, self._seed, self._billed_time, self._settle = (
            offer,
            agenda,
            seed,
            billed_time,
            settle,
        )
        self._numbers, self._choices = itertools.count(1), itertools.count(1)
        self.present: dict[str, Container] = {}
        self.past: list[Container] = []
        self.asked_for = 0
        self.away = self.sold_out = False
        self.interruptions = 0
        self.reallocated: list[str] = []
        self.replaced_at_ms: list[tuple[str, int]] = []  # machines that were reallocated, and when
        self.given_up: list[str] = []
        self._excluded_until_ms: dict[str, int] = {}
        self._requests: deque[int] = deque()
        self._reallocations: deque[int] = deque()
        self._next_machine = 0

    # ---- the port ----

    @property
    def limits(self) -> Limits:
        return Limits(
            most_nodes=self.offer.most_nodes,
            reallocations_per_minute=self.offer.reallocations_per_minute,
            excluded_after_reallocation_s=self.offer.excluded_s,
        )

    def desired(self, nodes: int, *, leaving: Collection[str] = ()) -> None:
        self._asked()
        self.asked_for = min(nodes, self.offer.most_nodes)
        surplus = len(self.present) - self.asked_for
        for container in self._first_to_go(leaving)[: max(0, surplus)]:
            self._end(container, lives_on_s=0.0)
        for _ in range(-surplus):
            self._allocate()

    def list(self) -> Sequence[Instance]:
        self._asked()
        return [
            Instance(
                id=each.id,
                state=each.state,
                name=each.id,
                machine_id=each.machine.id,
                running_since_ms=each.running_since_ms,
                restarts=each.restarts,
            )
            for each in self.present.values()
        ]

    def reallocate(self, instance_id: str, *, reason: str) -> None:
        del reason
        self._asked()
        container = self.present.get(instance_id)
        if container is None:
            raise InstanceGone(f"there is no instance {instance_id}")
        if not self._allowed(self._reallocations, self.offer.reallocations_per_minute):
            raise FleetUnavailable("too many reallocations in this minute")
        # A container that did not run yet is given up because it took too long to start, on any machine.
        (self.reallocated if container.running_since_ms is not None else self.given_up).append(container.machine.id)
        if container.running_since_ms is not None:
            self.replaced_at_ms.append((container.machine.id, self._agenda.now_ms()))
        self._excluded_until_ms[container.machine.id] = self._agenda.now_ms() + round(self.offer.excluded_s * 1000)
        self._end(container, lives_on_s=0.0)
        self._allocate()

    def drain(self, instance_id: str) -> None:
        self._asked()
        if instance_id not in self.present:
            raise InstanceGone(f"there is no instance {instance_id}")

    def price(self) -> Price:
        self._asked()
        return Price(micro_usd_per_hour=self.price_now(), source="provider")

    def close(self) -> None:
        """Do nothing: the simulated provider holds nothing."""

    # ---- the world ----

    def price_now(self) -> int:
        """Return the current price in micro-dollars per hour, with the spike while one is on."""
        price, spike = self.offer.price_micro_usd_per_hour, self.offer.spike
        if spike is not None and spike[0] <= self._agenda.elapsed_s() < spike[1]:
            return round(price * spike[2])
        return price

    @property
    def running(self) -> int:
        """Instances that are billed now."""
        return sum(each.running_since_ms is not None for each in self.present.values())

    def interrupt(self, container: Container, *, zombie: bool) -> None:
        """Take it away unasked; another comes in its place, as the provider does by itself."""
        if container.id not in self.present or container.running_since_ms is None:
            return
        self.interruptions += 1
        draw = rng(self._seed, "zombie", container.id)
        self._end(container, lives_on_s=draw.uniform(0.2, 1.8) * self.offer.zombie_s if zombie else 0.0)
        if len(self.present) < self.asked_for:
            self._allocate()

    def sell_out(self) -> None:
        """Give no more machines from now on; machines that were given stay."""
        self.sold_out = True

    def restock(self) -> None:
        """Offer machines again, and start the missing ones now, as the provider does by itself."""
        self.sold_out = False
        for _ in range(self.asked_for - len(self.present)):
            self._allocate()

    def stop_all(self) -> None:
        """End the simulation: containers that still run are billed up to now."""
        self.asked_for = 0
        for container in list(self.present.values()):
            self._end(container, lives_on_s=0.0)

    def restart(self, container: Container) -> None:
        """Start a process that ended by itself again where it was."""
        if container.id in self.present and container.running_since_ms is not None:
            container.restarts += 1
            container.node = self._settle(container)
            container.node.begin()

    # ---- inside ----

    def _asked(self) -> None:
        if self.away:
            raise FleetUnavailable("the provider does not answer")
        if not self._allowed(self._requests, self.offer.requests_per_minute):
            raise FleetUnavailable("429: too many requests in this minute")

    def _allowed(self, lately: deque[int], most: int) -> bool:
        now_ms = self._agenda.now_ms()
        while lately and lately[0] <= now_ms - 60_000:
            lately.popleft()
        if len(lately) >= most:
            return False
        lately.append(now_ms)
        return True

    def _first_to_go(self, leaving: Collection[str]) -> Sequence[Container]:
        """Sort the containers to end: named ones, those not yet running, then any; the provider sees no work."""

        def rank(container: Container) -> tuple[bool, bool, float]:
            lot = rng(self._seed, "lot", container.id).random()
            return container.id not in leaving, container.running_since_ms is not None, lot

        return sorted(self.present.values(), key=rank)

    def _allocate(self) -> None:
        machine = None if self.sold_out else self._machine()
        if machine is None:
            return  # nothing to be had; `desired` is asked again and again
        container = Container(id=f"{self.offer.name}-{next(self._numbers):06d}", machine=machine)
        self.present[container.id] = container
        share = rng(self._seed, "start", container.id).random()
        self._agenda.after(by_curve(share, self.offer.start_min) * 60.0, lambda: self._run(container))

    def _machine(self) -> SimulatedMachine | None:
        """Choose a machine that is neither in use nor excluded: in the pool's order, then any."""
        now_ms, pool = self._agenda.now_ms(), self.offer.pool
        used = {each.machine.id for each in self.present.values()}

        def free(number: int) -> SimulatedMachine | None:
            machine = pool.machine(self._seed, number, of=self.offer.machines)
            kept = self._excluded_until_ms.get(machine.id, 0) > now_ms
            return None if kept or machine.id in used else machine

        while self._next_machine < min(pool.in_order, pool.machines):
            self._next_machine += 1
            if (machine := free(self._next_machine - 1)) is not None:
                return machine
        draw = rng(self._seed, "choice", next(self._choices))
        begin = draw.randrange(pool.machines)
        found = (free((begin + step) % pool.machines) for step in range(pool.machines))
        return next((machine for machine in found if machine is not None), None)

    def _run(self, container: Container) -> None:
        if container.id not in self.present:
            return
        container.running_since_ms = self._agenda.now_ms()
        container.account = InstanceTimer(self._billed_time, at_ms=container.running_since_ms)
        container.node = self._settle(container)
        container.node.begin()
        draw = rng(self._seed, "interruption", container.id)
        uptime_s = exponential_s(draw, self.offer.mtbi_s)
        if not math.isinf(uptime_s):
            zombie = draw.random() < self.offer.zombies
            self._agenda.after(uptime_s, lambda: self.interrupt(container, zombie=zombie))

    def _end(self, container: Container, *, lives_on_s: float) -> None:
        now_ms = self._agenda.now_ms()
        del self.present[container.id]
        container.ended_at_ms = now_ms
        self.past.append(container)
        if container.node is not None:
            container.node.vanish(lives_on_s=lives_on_s)
        if container.account is not None:
            container.account.close(at_ms=now_ms)
        self._bill(container)

    def _bill(self, container: Container) -> None:
        if container.running_since_ms is None or container.ended_at_ms is None:
            return
        from_ms, to_ms = container.running_since_ms, container.ended_at_ms
        self._billed_time.billed_ms += to_ms - from_ms
        self._billed_time.billed_micro_usd += self._cost(from_ms, to_ms)
        self._billed_time.machines[container.machine.id].billed_ms += to_ms - from_ms

    def _cost(self, from_ms: int, to_ms: int) -> float:
        price, spike = self.offer.price_micro_usd_per_hour, self.offer.spike
        cost = float((to_ms - from_ms) * price)
        if spike is not None:
            begin_ms, end_ms = (self._agenda.start_ms + round(each * 1000) for each in spike[:2])
            cost += max(0, min(to_ms, end_ms) - max(from_ms, begin_ms)) * price * (spike[2] - 1.0)
        return cost / MS_PER_HOUR
