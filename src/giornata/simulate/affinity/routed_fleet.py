"""A fleet of nodes with models, played by the policy of `giornata.domain.generation.model_routing`.

The claims of the server ask the same functions: a test plays a small fleet through the real store, and finds the same
loads.

What is modeled: arrivals (Poisson), the time that drawing, loading and fetching take, least-recently-used places for
models on a node, nodes that end, and a server that is away. A node that gets nothing waits, and asks again when a
request comes or when the delay of one is over, as long polls do.
"""

import bisect
import itertools
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from giornata.domain.generation.model_routing import (
    BaseChoice,
    BaseDemand,
    HeldBases,
    Holders,
    RoutingPolicy,
    Tier,
    choose,
    is_relief,
    prefetch,
)
from giornata.simulate.affinity.setting import AffinitySetting
from giornata.simulate.agenda import Agenda
from giornata.simulate.draws import rng


@dataclass(eq=False, slots=True)
class ModelNode:
    """A node: the bases that it holds, least recently used first, and whether it is drawing."""

    number: int
    gpu: "OrderedDict[str, None]" = field(default_factory=OrderedDict)
    disk: "OrderedDict[str, None]" = field(default_factory=OrderedDict)
    fetching: str | None = None
    busy: bool = False
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """A request that began to be drawn: when it came, when it began, and whether its base was loaded for it."""

    arrived_ms: int
    began_ms: int
    loaded: bool

    @property
    def waited_s(self) -> float:
        """Seconds from the arrival to the begin of drawing."""
        return (self.began_ms - self.arrived_ms) / 1000


class RequestQueue:
    """The requests that wait, by base. Implements `giornata.domain.generation.model_routing.PictureDemand`."""

    def __init__(self, setting: AffinitySetting) -> None:
        self._setting = setting
        self._arrivals: dict[str, deque[int]] = {}
        self._oldest: list[tuple[int, str]] = []  # of each base with requests, sorted
        self.gpu_holders: dict[str, int] = defaultdict(int)
        self.disk_holders: dict[str, int] = defaultdict(int)
        self.fetchers: dict[str, int] = defaultdict(int)
        self.waiting = 0

    def add(self, base_key: str, at_ms: int) -> None:
        """Queue a request for this base."""
        if base_key not in self._arrivals:
            self._arrivals[base_key] = deque()
            bisect.insort(self._oldest, (at_ms, base_key))
        self._arrivals[base_key].append(at_ms)
        self.waiting += 1

    def take(self, base_key: str) -> int:
        """Remove the oldest request of a base, and return its arrival."""
        arrivals = self._arrivals[base_key]
        at_ms = arrivals.popleft()
        del self._oldest[bisect.bisect_left(self._oldest, (at_ms, base_key))]
        if arrivals:
            bisect.insort(self._oldest, (arrivals[0], base_key))
        else:
            del self._arrivals[base_key]
        self.waiting -= 1
        return at_ms

    def of_base(self, base_key: str) -> BaseDemand | None:
        """Return what waits for this base."""
        arrivals = self._arrivals.get(base_key)
        if not arrivals:
            return None
        work_s = len(arrivals) * self._setting.draw_s
        return BaseDemand(base_key=base_key, oldest_at_ms=arrivals[0], work_s=work_s)

    def by_turn(self) -> Iterator[BaseDemand]:
        """Iterate over the bases with requests, by their oldest request."""
        for _, base_key in self._oldest:
            if (found := self.of_base(base_key)) is not None:
                yield found

    def holders(self, base_key: str) -> Holders:
        """Return the number of nodes that hold the base."""
        gpu = self.gpu_holders[base_key]
        disk = self._setting.nodes if self._setting.disk_bases is None else self.disk_holders[base_key]
        return Holders(gpu=gpu, disk=max(0, disk - gpu), fetching=self.fetchers[base_key])


class RoutedFleet:
    """The nodes, the queue and the clock of one run. `random_routing` gives each request to any free node."""

    def __init__(
        self, setting: AffinitySetting, policy: RoutingPolicy, *, seed: int, random_routing: bool = False
    ) -> None:
        self._setting, self._policy, self._random = setting, policy, random_routing
        self._agenda = Agenda(start_ms=0)
        self._arrivals, self._lives = rng(seed, "affinity-arrivals", 0), rng(seed, "affinity-lives", 0)
        self._order = rng(seed, "affinity-order", 0)
        self._claims = itertools.count()
        self.queue = RequestQueue(setting)
        self._keys = [f"base-{number}" for number in range(setting.bases)]
        self._all_bases = frozenset(self._keys)
        self._cumulative = list(itertools.accumulate(setting.popularity()))
        self._idle: dict[int, ModelNode] = {}
        self._nodes: dict[int, ModelNode] = {}
        self._numbers = itertools.count()
        self.served: list[ServedRequest] = []
        self.fetches = 0
        self.drawing_s = self.loading_s = 0.0

    def play(self) -> None:
        """Play the run, until all that came within its time is drawn or twice its time is over."""
        end_ms = round((self._setting.warm_up_s + self._setting.measured_s) * 1000)
        for _ in range(self._setting.nodes):
            self._add_node()
        self._next_arrival(end_ms)
        self._agenda.run(
            until=lambda: self._agenda.now_ms() > end_ms and not self.queue.waiting, latest_ms=2 * end_ms
        )

    @property
    def nodes(self) -> tuple[ModelNode, ...]:
        """The nodes that live now."""
        return tuple(self._nodes.values())

    @property
    def now_ms(self) -> int:
        """The present instant of the run, in milliseconds."""
        return self._agenda.now_ms()

    @property
    def ended_s(self) -> float:
        """The instant up to which the run was played, in seconds."""
        return self._agenda.now_ms() / 1000

    # ---- requests

    def _next_arrival(self, end_ms: int) -> None:
        pause_s = self._arrivals.expovariate(self._setting.requests_per_s)
        self._agenda.after(pause_s, lambda: self._arrive(end_ms))

    def _arrive(self, end_ms: int) -> None:
        now_ms = self._agenda.now_ms()
        if now_ms > end_ms:
            return
        base_key = self._arrivals.choices(self._keys, cum_weights=self._cumulative)[0]
        self.arrived(base_key)
        self._wake(base_key)
        # Its delay is over then, and nodes that it was refused may have it.
        self._agenda.after(self._policy.delay_s, lambda: self._wake(base_key))
        self._next_arrival(end_ms)

    def arrived(self, base_key: str) -> None:
        """Queue a request that has just come."""
        self.queue.add(base_key, self.now_ms)

    def _wake(self, base_key: str) -> None:
        """Let free nodes claim, those that hold the base first; one of each tier, because the others get the same."""
        if self.queue.of_base(base_key) is None or self._is_away():
            return
        free = list(self._idle.values())
        self._order.shuffle(free)
        if self._random:
            self._claim(free[0]) if free else None
            return
        holding = [node for node in free if base_key in node.gpu][:1]
        on_disk = [node for node in free if base_key not in node.gpu and self._has_on_disk(node, base_key)][:1]
        others = [node for node in free if not self._has_on_disk(node, base_key)][:1]
        for node in (*holding, *on_disk, *others):
            self._claim(node)

    def _is_away(self) -> bool:
        begin_s = self._setting.outage_from_s
        return begin_s is not None and begin_s <= self.ended_s < begin_s + self._setting.outage_s

    # ---- nodes

    def _add_node(self) -> None:
        node = ModelNode(number=next(self._numbers))
        self._nodes[node.number] = self._idle[node.number] = node
        if self._setting.node_life_s is not None:
            self._agenda.after(self._lives.expovariate(1 / self._setting.node_life_s), lambda: self._end(node))
        self._agenda.after(0, lambda: self._claim(node))

    def _end(self, node: ModelNode) -> None:
        """End a node; an empty one takes its place. A request that it draws counts as drawn: leases are not the
        subject here."""
        node.gone = True
        self._idle.pop(node.number, None)
        del self._nodes[node.number]
        for key in node.gpu:
            self.queue.gpu_holders[key] -= 1
        for key in node.disk:
            self.queue.disk_holders[key] -= 1
        if node.fetching is not None:
            self.queue.fetchers[node.fetching] -= 1
        self._add_node()

    def _has_on_disk(self, node: ModelNode, base_key: str) -> bool:
        return self._setting.disk_bases is None or base_key in node.disk

    def _claim(self, node: ModelNode) -> None:
        """Let the node ask for work: it draws, waits for the server to come back, or waits for a request."""
        if node.gone or node.busy:
            return
        self._idle[node.number] = node
        if self._is_away():
            begin_s = self._setting.outage_from_s or 0.0
            self._agenda.after(begin_s + self._setting.outage_s - self.ended_s, lambda: self._claim(node))
            return
        self._prefetch(node)
        if (choice := self.choice(node, f"request-{next(self._claims):08d}")) is not None:
            self._draw(node, choice)

    def choice(self, node: ModelNode, request_id: str) -> BaseChoice | None:
        """Return the base that the node draws with now; None when it gets nothing."""
        if self._random:
            oldest = next(iter(self.queue.by_turn()), None)
            if oldest is None:
                return None
            return BaseChoice(base_key=oldest.base_key, tier=Tier.GPU if oldest.base_key in node.gpu else Tier.DISK)
        relief = is_relief(request_id, self._policy)
        return choose(self._held(node), self.queue, now_ms=self.now_ms, relief=relief, policy=self._policy)

    def _held(self, node: ModelNode) -> HeldBases:
        disk = self._all_bases if self._setting.disk_bases is None else node.disk
        return HeldBases(gpu=node.gpu, disk=disk, fetching=node.fetching)

    def _draw(self, node: ModelNode, choice: BaseChoice) -> None:
        now_ms = self._agenda.now_ms()
        loads = choice.base_key not in node.gpu
        arrived_ms = self.queue.take(choice.base_key)
        self.served.append(ServedRequest(arrived_ms=arrived_ms, began_ms=now_ms, loaded=loads))
        took_s = self._setting.draw_s + (self._setting.load_s if loads else 0.0)
        if self._random and not self._has_on_disk(node, choice.base_key):
            took_s += self._setting.fetch_s  # without hints the GPU waits for the file
            self._fetched_to(node, choice.base_key)
        self.drawing_s += self._setting.draw_s
        self.loading_s += took_s - self._setting.draw_s
        self._use(node, choice.base_key)
        node.busy = True
        del self._idle[node.number]
        self._agenda.after(took_s, lambda: self._done(node))

    def _use(self, node: ModelNode, base_key: str) -> None:
        """Note the use of a base in GPU memory, for which the least recently used one makes room."""
        if base_key not in node.gpu:
            if len(node.gpu) >= self._setting.gpu_bases:
                left, _ = node.gpu.popitem(last=False)
                self.queue.gpu_holders[left] -= 1
            node.gpu[base_key] = None
            self.queue.gpu_holders[base_key] += 1
        node.gpu.move_to_end(base_key)
        if base_key in node.disk:
            node.disk.move_to_end(base_key)

    def _done(self, node: ModelNode) -> None:
        node.busy = False
        self._claim(node)

    # ---- fetching

    def _prefetch(self, node: ModelNode) -> None:
        if self._random or self._setting.disk_bases is None:
            return
        wanted = prefetch(self._held(node), self.queue, now_ms=self.now_ms, policy=self._policy)
        if wanted is None:
            return
        node.fetching = wanted
        self.queue.fetchers[wanted] += 1
        self._agenda.after(self._setting.fetch_s, lambda: self._fetched(node, wanted))

    def _fetched(self, node: ModelNode, base_key: str) -> None:
        if node.gone:
            return
        node.fetching = None
        self.queue.fetchers[base_key] -= 1
        self._fetched_to(node, base_key)
        self._claim(node)

    def _fetched_to(self, node: ModelNode, base_key: str) -> None:
        """Put a base on the node's disk. What the GPU holds is the last to go."""
        self.fetches += 1
        if len(node.disk) >= (self._setting.disk_bases or 0):
            left = next((key for key in node.disk if key not in node.gpu), next(iter(node.disk)))
            del node.disk[left]
            self.queue.disk_holders[left] -= 1
        node.disk[base_key] = None
        self.queue.disk_holders[base_key] += 1
