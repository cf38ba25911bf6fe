"""A fleet on SaladCloud: one container group, or several. What it costs to know of the provider stands in ADR 23."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from giornata.control.ports.fleet import Instance, InstanceState, Limits, Outdated, Price
from giornata.control.ports.identities import WorkloadIdentities
from giornata.domain.billing.money import MICRO_USD
from giornata.domain.errors import FleetRefused, FleetUnavailable, InstanceGone
from giornata.fleets.opening import NodeWork
from giornata.fleets.salad.calls import Document, GroupCalls, SaladCalls
from giornata.fleets.salad.container_groups import (
    ContainerGroup,
    find_groups,
    grown,
    is_marked,
    most_groups,
    remove_empty,
    shrunk,
)
from giornata.fleets.salad.options import MOST_REPLICAS, SaladOptions
from giornata.fleets.salad.shortage import Quota, availability_asked, quota_of, why_missing
from giornata.fleets.salad.translation import (
    DRAINED_COST,
    EXCLUDED_AFTER_REALLOCATION_S,
    class_ids,
    differences,
    gpu_class_by_instance,
    instance_of,
    limits_of,
    prices_by_class,
    prototype_of,
    replicas_of,
)

log = logging.getLogger(__name__)

PRICES_KEPT_S = 300.0
QUOTAS_KEPT_S = 60.0
LOGS_READ_EVERY_S = 60.0

ContainerFor = Callable[[Sequence[str]], dict[str, Any]]
"""The container that the settings describe, with these GPU classes (ids)."""


@dataclass(slots=True, kw_only=True)
class SaladFleet:
    """Nodes are the replicas of container groups, which are made when they are first needed.

    `group` is the name of the first group; the others have its name and a number, and `name` in their container.
    `fresh_container` has everything a node needs; `stable_container` only what stays the same from one start of the
    server to the next, and so can be compared with what the provider has. `identities` recognizes the nodes' tokens.
    """

    name: str
    group: str
    options: SaladOptions
    calls: SaladCalls
    fresh_container: ContainerFor = field(repr=False)  # they hold passwords
    stable_container: ContainerFor = field(repr=False)
    work: NodeWork = field(default_factory=NodeWork)
    identities: WorkloadIdentities | None = None
    let_go: Callable[[], None] = lambda: None
    monotonic_s: Callable[[], float] = time.monotonic
    most_each: int = MOST_REPLICAS
    _limits: Limits | None = None
    _quota: Quota | None = None
    _quota_at_s: float | None = None
    _classes: Mapping[str, Document] = field(default_factory=dict)
    _classes_at_s: float | None = None
    _home: Mapping[str, str] = field(default_factory=dict)
    _class_by_instance: dict[str, str] = field(default_factory=dict)
    _logs_at_s: float | None = None

    @property
    def limits(self) -> Limits:
        """The limits that the organization's quotas leave for this fleet, as last reported."""
        return self._limits or Limits(
            most_nodes=self._most_nodes, excluded_after_reallocation_s=EXCLUDED_AFTER_REALLOCATION_S
        )

    def desired(self, nodes: int, *, leaving: Collection[str] = ()) -> None:
        """See Fleet. Nobody who stays is disturbed: only the number of replicas is changed while any of them runs.

        Of more nodes than the organization's quota leaves, those that it leaves are asked for.
        """
        groups = self._groups()
        most, now = self.most_each * len(groups), sum(each.size for each in groups)
        if not 0 <= nodes <= most:
            raise FleetRefused(f"this fleet on SaladCloud can have 0 to {most} nodes, not {nodes}")
        if nodes > now:
            nodes = self._within_quota(nodes, own=now)
        sizes = self._shrink(groups, nodes, leaving) if nodes < now else self._grow(groups, nodes)
        remove_empty(groups, sizes)
        self._hear_quota(own=nodes)

    def list(self) -> Sequence[Instance]:
        """List the instances of all container groups of the fleet."""
        groups = self._groups()
        listed, home = list[Instance](), dict[str, str]()
        for group in groups:
            found = [instance_of(row) for row in group.calls.instances()] if group.document is not None else []
            home |= {each.id: group.calls.name for each in found}
            listed += found
        self._home = home
        self._hear_quota(own=sum(each.size for each in groups))
        if len(self.options.gpu_classes) > 1 and self.options.price_usd_per_hour is None:
            self._hear_classes(listed, [each.calls for each in groups if each.document is not None])
        return [replace(each, offer=self._class_by_instance.get(each.id, "")) for each in listed]

    def reallocate(self, instance_id: str, *, reason: str) -> None:
        """See Fleet. The machine is excluded from the group for two days."""
        log.info("%s: %s goes to another machine: %s", self.group, instance_id, reason)
        repeated = False
        for calls in self._groups_with(instance_id):
            answer = calls.reallocate(instance_id)
            if answer.found:
                return
            repeated = repeated or answer.repeated
        same = self._listed(instance_id)
        if same is None:
            if repeated:
                return  # it was the first try, whose reply got lost, that ended it
            raise InstanceGone(f"{self.group} has no instance {instance_id} any more")
        if same.id == instance_id or not self.calls.of(self._home[same.id]).reallocate(same.id).found:
            raise FleetUnavailable(f"SaladCloud's list contains {same.id}, but the API returned 404 for it")

    def drain(self, instance_id: str) -> None:
        """See Fleet. It costs the least to delete, after those that the number falls for."""
        for calls in self._groups_with(instance_id):
            if calls.set_deletion_cost(instance_id, DRAINED_COST).found:
                return
        if self._listed(instance_id) is None:
            raise InstanceGone(f"{self.group} has no instance {instance_id} any more")
        raise FleetUnavailable(f"SaladCloud's list contains {instance_id}, but the API returned 404 for it")

    def price(self) -> Price:
        """The settings' price, else the highest of the GPU classes at the group's priority, since any may come."""
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
        """A group has one container for all its instances: when it changes, every one of them restarts."""
        return False

    def outdated(self) -> Outdated:
        """See Renews. A group at rest has nobody who is outdated: it starts with what the settings say then."""
        settings, instances = set[str](), set[str]()
        for group in self._groups():
            if group.document is None or group.at_rest:
                continue
            if found := differences(group.document, self.stable_container(self._gpu_class_ids())):
                settings |= set(found)
                instances |= {each.instance.id for each in group.listed(())}
        return Outdated(settings=tuple(sorted(settings)), instances=frozenset(instances))

    def renew(self, instance_ids: Collection[str]) -> None:
        """See Renews. Each group gets the container that the settings describe, and every instance restarts."""
        del instance_ids
        classes = self._gpu_class_ids()
        for group in self._groups():
            if group.document is not None and differences(group.document, self.stable_container(classes)):
                group.calls.patch({"container": self.fresh_container(classes)})

    def shortage(self) -> str:
        """See TellsShortage: the quota, the provider's counts, its logs, and the machines that it has free."""
        groups = [each for each in self._groups() if each.size]
        wanted = sum(each.size for each in groups)
        quota, most = self._quota, None if self._quota is None else self._quota.most
        said = [str(quota)] if most is not None and most <= wanted else []
        running = {
            each.number: sum(one.instance.state is InstanceState.RUNNING for one in each.listed(()))
            for each in groups
        }
        short = [each for each in groups if running[each.number] < each.size]
        if short:
            why = why_missing(
                [each.document for each in groups if each.document is not None],
                running=sum(running.values()),
                logs=[row for each in short for row in each.calls.system_logs()],
                availability=self.calls.availability(availability_asked(self.options, self._gpu_class_ids())),
                priority=self.options.priority,
            )
            said.append(why)
        return "; ".join(said)

    def close(self) -> None:
        """See Fleet. The provider's groups stay as they are."""
        self.let_go()

    @property
    def _most_groups(self) -> int:
        return most_groups(self.group, group_id=self.options.group_id)

    def _check_work(self, group: Document) -> None:
        """Check the work of further instances. Raises FleetRefused when they would not take the expected work.

        A group keeps its earlier settings for as long as any instance runs.
        """
        container = group.get("container") or {}
        if self.work.missing_in(container.get("environment_variables") or {}):
            advice = f"giornata fleets roll {self.name} gives its nodes the settings of now"
            raise FleetRefused(
                f"{group['name']} starts nodes for other kinds of job than the fleet's settings: {advice}"
            )

    @property
    def _most_nodes(self) -> int:
        return self.most_each * self._most_groups

    def _groups(self) -> Sequence[ContainerGroup]:
        return find_groups(self.calls, base=self.group, mark=self.name, most=self._most_groups)

    def _grow(self, groups: Sequence[ContainerGroup], nodes: int) -> Mapping[int, int]:
        sizes = grown({each.number: each.size for each in groups}, nodes, most_each=self.most_each)
        for group in groups:
            size = sizes[group.number]
            if size == 0:
                group.stop()
            elif group.document is None:
                self._create(group, size)
            elif group.at_rest:
                group.start(self._changes(group.document, size))
            elif size != group.size:
                self._check_work(group.document)
                group.calls.patch({"replicas": size})
        return sizes

    def _shrink(self, groups: Sequence[ContainerGroup], nodes: int, leaving: Collection[str]) -> Mapping[int, int]:
        listed = {each.number: each.listed(leaving) if each.size and nodes else () for each in groups}
        present = [(one.cost, number) for number, ones in listed.items() for one in ones]
        sizes = shrunk({each.number: each.size for each in groups}, nodes, present)
        for group in groups:
            size = sizes[group.number]
            if size == 0:
                group.stop()
            elif size < group.size:
                group.shrink(size, listed[group.number])
        return sizes

    def _create(self, group: ContainerGroup, size: int) -> None:
        """Make the group with so many replicas, or find the one that a try made whose reply got lost."""
        container = self.fresh_container(self._gpu_class_ids())
        prototype = prototype_of(self.options, name=group.calls.name, container=container, replicas=size)
        try:
            answer = self.calls.create(prototype)
        except FleetRefused:
            found = group.calls.group()
            if found is None or (group.number > 1 and not is_marked(found, self.name)):
                raise
            now = ContainerGroup(number=group.number, calls=group.calls, document=found)
            if now.at_rest:
                now.start(self._changes(found, size))
            elif now.size != size:
                now.calls.patch({"replicas": size})
            return
        if not answer.found:
            raise FleetRefused("SaladCloud has no such organization or project")

    def _changes(self, group: Document, size: int) -> dict[str, Any]:
        """Return the changes for a group at rest: no node runs in it, so changed settings may take effect now."""
        changes: dict[str, Any] = {} if replicas_of(group) == size else {"replicas": size}
        classes = self._gpu_class_ids()
        if other := differences(group, self.stable_container(classes)):
            log.warning("%s starts with changed settings: %s", group.get("name"), ", ".join(other))
            changes["container"] = self.fresh_container(classes)
        return changes

    def _groups_with(self, instance_id: str) -> Iterator[GroupCalls]:
        """The groups that may have the instance: first the one that was listed with it."""
        home = self._home.get(instance_id)
        if home is not None:
            yield self.calls.of(home)
        yield from (each.calls for each in self._groups() if each.document is not None and each.calls.name != home)

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

    def _within_quota(self, nodes: int, *, own: int) -> int:
        """Return as many of these nodes as the quota leaves; all when the provider does not tell the quota."""
        self._quota = self._quota_at_s = None
        self._hear_quota(own=own)
        most = None if self._quota is None else self._quota.most
        if most is None or most >= nodes:
            return nodes
        log.warning("%s: %s; %d were wanted", self.group, self._quota, nodes)
        return most

    def _hear_classes(self, listed: Sequence[Instance], groups: Sequence[GroupCalls]) -> None:
        """Note the GPU class of each instance. The listing lacks the class; the latest entries of the log have it."""
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
            for group in groups:
                said = gpu_class_by_instance(group.system_logs())
                self._class_by_instance |= {key: name for key, name in said.items() if key in present}

    def _hear_quota(self, *, own: int) -> None:
        now_s = self.monotonic_s()
        if self._quota_at_s is not None and now_s - self._quota_at_s < QUOTAS_KEPT_S:
            return
        # What is known of quotas is no reason not to do what was asked for.
        with suppress(FleetUnavailable, FleetRefused):
            self._quota_at_s = now_s
            quotas = self.calls.quotas()
            self._quota = quota_of(quotas, own=own)
            most, reason = self._most_nodes, ""
            if self._quota.most is not None and self._quota.most < most:
                most, reason = self._quota.most, str(self._quota)
            self._limits = limits_of(quotas, most_nodes=most, reason=reason)
