"""A fleet that is one container group of SaladCloud. What it costs to know of the provider stands in ADR 23."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from giornata.control.ports.fleet import Instance, InstanceState, Limits, Outdated, Price
from giornata.control.ports.identities import WorkloadIdentities
from giornata.domain.errors import FleetRefused, FleetUnavailable, InstanceGone
from giornata.domain.money import MICRO_USD
from giornata.fleets.salad.calls import Document, SaladCalls
from giornata.fleets.salad.options import MOST_REPLICAS, Options
from giornata.fleets.salad.shortage import availability_asked, why_missing
from giornata.fleets.salad.translation import (
    AT_REST,
    DRAINED_COST,
    EXCLUDED_AFTER_REALLOCATION_S,
    class_ids,
    deletion_cost,
    differences,
    gpu_class_by_instance,
    instance_of,
    limits_of,
    prices_by_class,
    prototype_of,
    replicas_of,
    status_of,
)

log = logging.getLogger(__name__)

PRICES_KEPT_S = 300.0
QUOTAS_KEPT_S = 600.0
LOGS_READ_EVERY_S = 60.0
UNKNOWN_LIMITS = Limits(
    most_nodes=MOST_REPLICAS,
    reallocations_per_minute=None,
    excluded_after_reallocation_s=EXCLUDED_AFTER_REALLOCATION_S,
)

ContainerFor = Callable[[Sequence[str]], dict[str, Any]]
"""The container that the settings describe, with these GPU classes (ids)."""


@dataclass(slots=True, kw_only=True)
class SaladFleet:
    """Nodes are the replicas of one container group, which is made when it is first needed.

    `fresh_container` has everything a node needs; `stable_container` only what stays the same from one start of the
    server to the next, and so can be compared with what the provider has. `identities` recognises the nodes' tokens.
    """

    options: Options
    calls: SaladCalls
    fresh_container: ContainerFor = field(repr=False)  # they hold passwords
    stable_container: ContainerFor = field(repr=False)
    identities: WorkloadIdentities | None = None
    let_go: Callable[[], None] = lambda: None
    monotonic_s: Callable[[], float] = time.monotonic
    _limits: Limits = UNKNOWN_LIMITS
    _limits_at_s: float | None = None
    _classes: Mapping[str, Document] = field(default_factory=dict)
    _classes_at_s: float | None = None
    _class_by_instance: dict[str, str] = field(default_factory=dict)
    _logs_at_s: float | None = None

    @property
    def limits(self) -> Limits:
        """The organisation's quotas, as last heard."""
        return self._limits

    def desired(self, nodes: int, *, leaving: Collection[str] = ()) -> None:
        """See Fleet. Nobody who stays is disturbed: only the number of replicas is changed while any of them runs."""
        if not 0 <= nodes <= MOST_REPLICAS:
            raise FleetRefused(f"SaladCloud has groups of 0 to {MOST_REPLICAS} replicas, not {nodes}")
        group = self.calls.group()
        if nodes == 0:
            self._stop(group)
            return
        if group is None:
            group = self._created(nodes)
        if nodes < replicas_of(group) and status_of(group) not in AT_REST:
            self._choose_who_leaves(leaving)
        # Replicas first: a group that is started before comes up in its old size.
        changes = self._changes(group, nodes)
        if changes:
            self.calls.patch(changes)
        if status_of(group) in AT_REST:
            self._start()
        self._hear_quotas()

    def list(self) -> Sequence[Instance]:
        """See Fleet."""
        listed = [instance_of(row) for row in self.calls.instances()]
        self._hear_quotas()
        if len(self.options.gpu_classes) > 1 and self.options.price_usd_per_hour is None:
            self._hear_classes(listed)
        return [replace(each, offer=self._class_by_instance.get(each.id, "")) for each in listed]

    def reallocate(self, instance_id: str, *, reason: str) -> None:
        """See Fleet. The machine is excluded from the group for two days."""
        log.info("%s: %s goes to another machine: %s", self.calls.name, instance_id, reason)
        answer = self.calls.reallocate(instance_id)
        if answer.found:
            return
        same = self._listed(instance_id)
        if same is None:
            if answer.repeated:
                return  # it was the first try, whose reply got lost, that ended it
            raise InstanceGone(f"{self.calls.name} has no instance {instance_id} any more")
        if same.id == instance_id or not self.calls.reallocate(same.id).found:
            raise FleetUnavailable(f"SaladCloud lists {same.id}, and does not find it")

    def drain(self, instance_id: str) -> None:
        """See Fleet. It costs the least to delete, after those that the number falls for."""
        if self.calls.set_deletion_cost(instance_id, DRAINED_COST).found:
            return
        if self._listed(instance_id) is None:
            raise InstanceGone(f"{self.calls.name} has no instance {instance_id} any more")
        raise FleetUnavailable(f"SaladCloud lists {instance_id}, and does not find it")

    def price(self) -> Price:
        """The dearest of the GPU classes at the group's priority, since any may come, or what the settings say."""
        options = self.options
        if options.price_usd_per_hour is not None:
            return Price(micro_usd_per_hour=round(options.price_usd_per_hour * MICRO_USD), source="settings")
        return Price(micro_usd_per_hour=max(self.prices().values()), source="provider")

    def prices(self) -> Mapping[str, int]:
        """See PricesOffers: by GPU class; none where the settings say what every node costs."""
        if self.options.price_usd_per_hour is not None:
            return {}
        beside = round(self.options.price_beside_gpu_usd_per_hour * MICRO_USD)
        by_class = prices_by_class(self._gpu_classes(), priority=self.options.priority)
        return {name: price + beside for name, price in by_class.items()}

    @property
    def one_by_one(self) -> bool:
        """The group has one container for all: when it changes, every instance restarts."""
        return False

    def outdated(self) -> Outdated:
        """See Renews. A group at rest has nobody who is outdated: it starts with what the settings say then."""
        group = self.calls.group()
        if group is None or status_of(group) in AT_REST:
            return Outdated()
        settings = differences(group, self.stable_container(self._gpu_class_ids()))
        present = (each for each in self.list() if each.state is not InstanceState.STOPPING)
        return Outdated(settings=tuple(settings), instances=frozenset(each.id for each in present if settings))

    def renew(self, instance_ids: Collection[str]) -> None:
        """See Renews. The group gets the container that the settings describe, and every instance restarts."""
        del instance_ids
        group, classes = self.calls.group(), self._gpu_class_ids()
        if group is not None and differences(group, self.stable_container(classes)):
            self.calls.patch({"container": self.fresh_container(classes)})

    def shortage(self) -> str:
        """See TellsShortage: the provider's counts, its log of the group, and the machines that it has free."""
        group = self.calls.group()
        if group is None or status_of(group) in AT_REST:
            return ""
        running = sum(each.state is InstanceState.RUNNING for each in self.list())
        if running >= replicas_of(group):
            return ""
        asked = availability_asked(self.options, self._gpu_class_ids())
        return why_missing(
            group,
            running=running,
            logs=self.calls.system_logs(),
            availability=self.calls.availability(asked),
            priority=self.options.priority,
        )

    def close(self) -> None:
        """See Fleet. The provider's group stays as it is."""
        self.let_go()

    def _stop(self, group: Document | None) -> None:
        # Whatever state it is in: one that is only being deployed will be running, and be paid for.
        if group is None or status_of(group) in AT_REST:
            return
        try:
            self.calls.stop()
        except FleetRefused:
            now = self.calls.group()
            if now is not None and status_of(now) not in AT_REST:
                raise

    def _start(self) -> None:
        try:
            self.calls.start()
        except FleetRefused:
            now = self.calls.group()
            if now is None or status_of(now) in AT_REST:
                raise

    def _created(self, nodes: int) -> Document:
        """The group, made with so many replicas, or the one that a try made whose reply got lost."""
        container = self.fresh_container(self._gpu_class_ids())
        prototype = prototype_of(self.options, name=self.calls.name, container=container, replicas=nodes)
        try:
            answer = self.calls.create(prototype)
        except FleetRefused:
            group = self.calls.group()
            if group is None:
                raise
            return group
        if not answer.found:
            raise FleetRefused("SaladCloud has no such organisation or project")
        return answer.body if isinstance(answer.body, dict) else {"replicas": nodes}

    def _changes(self, group: Document, nodes: int) -> dict[str, Any]:
        changes: dict[str, Any] = {} if replicas_of(group) == nodes else {"replicas": nodes}
        if status_of(group) in AT_REST:
            # Nobody runs who could be disturbed: now the settings may take effect.
            classes = self._gpu_class_ids()
            other = differences(group, self.stable_container(classes))
            if other:
                log.warning("%s starts with changed settings: %s", self.calls.name, ", ".join(other))
                changes["container"] = self.fresh_container(classes)
        return changes

    def _choose_who_leaves(self, leaving: Collection[str]) -> None:
        """Say whom the provider shall take when replicas become fewer; before they do."""
        for row in self.calls.instances():
            instance = instance_of(row)
            if instance.state is InstanceState.STOPPING:
                continue
            had = row.get("deletion_cost")
            cost = deletion_cost(instance, leaving=instance.id in leaving, drained=had == DRAINED_COST)
            if had == cost:
                continue
            try:
                # One that is not there any more needs none.
                self.calls.set_deletion_cost(instance.id, cost)
            except FleetRefused:
                # Whoever has not begun loses nothing by going first. For one at work the number must not fall.
                if instance.state is InstanceState.RUNNING:
                    raise

    def _listed(self, instance_id: str) -> Instance | None:
        """The instance of that id, or on the machine of that id, if the provider lists one."""
        present = [each for each in self.list() if each.state is not InstanceState.STOPPING]
        by_id = next((each for each in present if each.id == instance_id), None)
        return by_id or next((each for each in present if each.machine_id == instance_id), None)

    def _gpu_classes(self) -> Mapping[str, Document]:
        now_s = self.monotonic_s()
        if self._classes_at_s is None or now_s - self._classes_at_s >= PRICES_KEPT_S:
            self._classes = class_ids(self.calls.gpu_classes(), self.options.gpu_classes)
            self._classes_at_s = now_s
        return self._classes

    def _gpu_class_ids(self) -> Sequence[str]:
        return list(self._gpu_classes())

    def _hear_classes(self, listed: Sequence[Instance]) -> None:
        """Which GPU class each instance has. The listing does not say it; the latest entries of the log do."""
        present = {each.id for each in listed}
        self._class_by_instance = {key: name for key, name in self._class_by_instance.items() if key in present}
        unknown = [each for each in listed if each.id not in self._class_by_instance]
        now_s = self.monotonic_s()
        due = self._logs_at_s is None or now_s - self._logs_at_s >= LOGS_READ_EVERY_S
        if not due or not any(each.state is InstanceState.RUNNING for each in unknown):
            return
        # Without an answer these instances are taken to cost what the dearest class does.
        with suppress(FleetUnavailable, FleetRefused):
            self._logs_at_s = now_s
            said = gpu_class_by_instance(self.calls.system_logs())
            self._class_by_instance |= {key: name for key, name in said.items() if key in present}

    def _hear_quotas(self) -> None:
        now_s = self.monotonic_s()
        if self._limits_at_s is not None and now_s - self._limits_at_s < QUOTAS_KEPT_S:
            return
        # What is known of quotas is no reason not to do what was asked for.
        with suppress(FleetUnavailable, FleetRefused):
            self._limits_at_s = now_s
            self._limits = limits_of(self.calls.quotas())
