"""Nodes as pods of a Kubernetes cluster: a Deployment, or a StatefulSet, whose size is ours.

A pod is an instance, and its id is the pod's uid: names of a StatefulSet's pods come back, uids do not. Its machine
is the node of the cluster that it runs on, for the API does not say which of a node's GPUs a pod was given.

Which pod leaves when there are to be fewer is said by `controller.kubernetes.io/pod-deletion-cost`, and a Deployment
keeps to it after three rules of its own: pods without a machine go first, then those that do not run yet, then those
that are not ready. All three have no work. A StatefulSet always takes its highest numbers.

So the cluster may keep a pod that was to leave. The control plane then ends it by name (`reallocate`).

The template of a workload is changed while it has no pods, or when nobody in them has a job: a change makes the
cluster replace every pod of a Deployment. Of a StatefulSet it replaces none; there the driver evicts them.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kubernetes.client import ApiClient

from giornata.control.ports.fleet import Instance, Limits, Outdated, Price
from giornata.domain.billing.money import MICRO_USD
from giornata.domain.errors import FleetRefused, FleetUnavailable, InstanceGone, InvalidInput
from giornata.fleets.kubernetes.calls import Calls, open_cluster
from giornata.fleets.kubernetes.errors import Expired, Missing, ObjectConflict
from giornata.fleets.kubernetes.options import FLEET_LABEL, KubernetesOptions
from giornata.fleets.kubernetes.pods import FAILED, PRESENT, Pod, instance_of
from giornata.fleets.kubernetes.shortage import who_set_the_number, why_missing
from giornata.fleets.kubernetes.workload import differences, digest_of, missing_in_pods, workload_of
from giornata.fleets.opening import FleetDependencies, NodeWork, faults_of_environment

log = logging.getLogger(__name__)

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
LEAVES_FIRST = "-1000"
LEAVES_NEXT = "-500"  # drained, and the number has not fallen for it yet
LISTINGS = 3  # of one list, when the pages that are left have expired


@dataclass(slots=True, kw_only=True)
class KubernetesFleet:
    """See `giornata.control.ports.fleet.FleetDriver`. Keeps nothing; every call asks the cluster. Thread-safe.

    `workload` makes the Deployment or StatefulSet for so many nodes, or None where it is the operator's to make; it
    has to tell its pods the `work` then.
    """

    name: str
    calls: Calls
    workload: Callable[[int], dict[str, Any]] | None
    node_price: Price
    most_nodes: int | None = None
    work: NodeWork = field(default_factory=NodeWork)

    @property
    def limits(self) -> Limits:
        """A pod that is replaced may come back on the machine that it was on; no machine is shut out. A pod that is
        listed no more has ended: one whose machine does not answer is listed as long as the machine is."""
        return Limits(most_nodes=self.most_nodes, moves=False, gone_has_ended=True)

    def desired(self, nodes: int, *, leaving: Collection[str] = ()) -> None:
        """Set the size of the workload, and make the workload when there is none.

        Of a Deployment exactly those `leaving` go, unless a pod that does not run yet goes instead; of a StatefulSet
        those with the highest numbers.
        """
        there = self._there()
        now = 0 if there is None else there.spec.replicas or 0
        if nodes > now:
            self.calls.check_version()
        if there is None:
            self._begin(nodes)
            return
        if nodes < now and leaving:
            self._mark(frozenset(leaving))
        if nodes > 0:
            self._renew_without_pods(there)
        if nodes > now:
            self._check_work()
        if nodes != now:
            if by_hand := who_set_the_number(there):
                log.warning("fleet %s: %s: %s; it is %d now", self.name, self.calls.described, by_hand, nodes)
            self.calls.set_scale(nodes)

    def list(self) -> Sequence[Instance]:
        """List every pod with the fleet's label that has not ended, regardless of its maker."""
        return [instance_of(pod) for pod in self._pods()]

    def reallocate(self, instance_id: str, *, reason: str) -> None:
        """Delete the pod, with its own time of grace; the workload makes another.

        A pod that is being deleted already is left to it. Raises InstanceGone.
        """
        pod = self._pod(instance_id)
        if pod.metadata.deletion_timestamp is not None:
            return
        log.info("fleet %s: pod %s is deleted: %s", self.name, pod.metadata.name, reason)
        self._on(pod, self.calls.delete_pod)

    def drain(self, instance_id: str) -> None:
        """Mark the pod as the one to be deleted next; a StatefulSet does not look at it. Raises InstanceGone."""
        pod = self._pod(instance_id)
        if pod.metadata.deletion_timestamp is None and _cost(pod) != LEAVES_FIRST:
            self._on(pod, lambda each: self.calls.annotate_pod(each, {DELETION_COST: LEAVES_NEXT}))

    @property
    def one_by_one(self) -> bool:
        """A Deployment replaces all pods when its template changes; a StatefulSet those that are deleted."""
        return self.calls.kind == "StatefulSet"

    def outdated(self) -> Outdated:
        """See Renews. A workload of other settings is outdated too, also while no pod can be made of it; one that is
        the operator's own is not."""
        if (there := self._ours()) is None or self.workload is None:
            return Outdated()
        wanted = self.workload(0)
        digest = digest_of(wanted["metadata"])
        old = [pod for pod in self._pods() if self._is_of_other(pod, there, digest)]
        if not old and (digest_of(there.metadata) == digest or not there.spec.replicas):
            return Outdated()
        spec = old[0].spec if old else there.spec.template.spec
        settings = differences(self.calls.client, spec, wanted)
        return Outdated(settings=settings, instances=frozenset(pod.metadata.uid for pod in old))

    def renew(self, instance_ids: Collection[str]) -> None:
        """See Renews. Pods of a StatefulSet are evicted: a PodDisruptionBudget that does not allow it now is
        FleetUnavailable."""
        if (there := self._ours()) is None or self.workload is None:
            return
        wanted = self.workload(0)
        digest = digest_of(wanted["metadata"])
        old = [pod for pod in self._pods() if self._is_of_other(pod, there, digest)]
        if digest_of(there.metadata) != digest:
            self.calls.renew_workload(there, wanted, at_once=True)
        for pod in old if self.one_by_one else ():
            if pod.metadata.uid in instance_ids:
                with suppress(InstanceGone):
                    self._on(pod, self.calls.evict_pod)

    def shortage(self) -> str:
        """See TellsShortage: the cluster's messages on pods that it could not make, another manager's change of the
        number of pods, and the last pod's end."""
        if (there := self._there()) is None:
            return ""
        warnings, unread = list[Any](), ""
        if self.calls.kind == "StatefulSet":
            try:
                warnings = self.calls.warnings()
            except FleetRefused as refusal:  # the rest is worth telling
                unread = f"the events that say why cannot be read: {refusal}"
        why = why_missing(there, failed=self._selected(FAILED), warnings=warnings)
        return "; ".join(filter(None, [why, unread]))

    def price(self) -> Price:
        """The price in the settings: clusters have no prices."""
        return self.node_price

    def close(self) -> None:
        """Close all connections to the API server."""
        self.calls.close()

    def _begin(self, nodes: int) -> None:
        if nodes == 0:
            return
        if self.workload is None:
            raise FleetUnavailable(f"{self.calls.described} does not exist, and the fleet has no image to create it")
        try:
            self.calls.create_workload(self.workload(nodes))
        except Missing as error:
            raise FleetRefused(
                f"{self.calls.described} cannot be made: {error}; create the namespace {self.calls.namespace}, or "
                "correct namespace in the fleet's options"
            ) from None
        except ObjectConflict:  # by another replica of this server, or by our own request whose answer was lost
            self.calls.set_scale(nodes)

    def _check_work(self) -> None:
        """Check the work of the workload's pods. Raises FleetRefused when pods would not take the expected work."""
        there = self._there()
        if there is None or not (variables := missing_in_pods(there, self.work)):
            return
        if self.workload is None or digest_of(there.metadata) is None:
            advice = f"set {variables} on its container, or change kinds and places of the table"
        else:
            advice = f"giornata fleets roll {self.name} gives its nodes the settings of now"
        raise FleetRefused(
            f"{self.calls.described} starts nodes for other kinds of job than the fleet's settings: {advice}"
        )

    def _renew_without_pods(self, there: Any) -> None:
        """Give the workload the present settings while it has no pods to replace.

        The driver also does so where pods were requested: a template that the cluster refuses never gets a pod.
        """
        had = digest_of(there.metadata)
        if self.workload is None or had is None:  # without a digest it is the operator's own
            return
        wanted = self.workload(0)
        if had == digest_of(wanted["metadata"]):
            return
        if there.spec.replicas and any(pod.metadata.deletion_timestamp is None for pod in self._pods()):
            return
        log.info("fleet %s: %s gets the pods that the settings describe now", self.name, self.calls.described)
        self.calls.renew_workload(there, wanted, at_once=bool(there.spec.replicas))

    def _mark(self, leaving: frozenset[str]) -> None:
        """Give leaving pods a lower deletion cost than all others, and remove this cost from other pods."""
        for pod in self._pods():
            cost = _cost(pod)
            wanted = LEAVES_FIRST if pod.metadata.uid in leaving else None
            if cost != wanted and (wanted or cost == LEAVES_FIRST):
                try:
                    self.calls.annotate_pod(pod, {DELETION_COST: wanted})
                except (Missing, ObjectConflict):
                    continue  # gone meanwhile

    def _there(self) -> Any:
        """The workload; None when there is none."""
        try:
            return self.calls.workload()
        except Missing:
            return None

    def _ours(self) -> Any:
        """The workload, if it was made by this driver; None otherwise."""
        there = None if self.workload is None else self._there()
        return None if there is None or digest_of(there.metadata) is None else there

    @staticmethod
    def _is_of_other(pod: Pod, there: Any, digest: str | None) -> bool:
        """Return True when the pod stays and has other settings. Older pods have no digest but their workload's."""
        of = digest_of(pod.metadata) or digest_of(there.metadata)
        return pod.metadata.deletion_timestamp is None and of != digest

    def _pods(self) -> Sequence[Pod]:
        return self._selected(PRESENT)

    def _selected(self, field_selector: str) -> Sequence[Pod]:
        for _ in range(LISTINGS):
            try:
                return self.calls.pods(f"{FLEET_LABEL}={self.name}", field_selector)
            except Expired:
                continue
        raise FleetUnavailable("the list of pods changes faster than it can be read")

    def _pod(self, instance_id: str) -> Pod:
        for pod in self._pods():
            if pod.metadata.uid == instance_id:
                return pod
        raise InstanceGone(f"no pod of fleet {self.name} has the uid {instance_id}")

    def _on(self, pod: Pod, call: Callable[[Pod], None]) -> None:
        try:
            call(pod)
        except (Missing, ObjectConflict):  # ObjectConflict: the name has another uid now
            self._pod(pod.metadata.uid)
            raise FleetUnavailable(f"pod {pod.metadata.name} is in the list, but the API did not find it") from None


def _cost(pod: Pod) -> str | None:
    cost: str | None = (pod.metadata.annotations or {}).get(DELETION_COST)
    return cost


def open_fleet(name: str, options: KubernetesOptions, dependencies: FleetDependencies) -> KubernetesFleet:
    """Pods of a cluster, reached as the options say, or as a pod of it, or by the user's kubeconfig."""
    cluster = open_cluster(options, dependencies.environment)
    return fleet_on(cluster.client, cluster.namespace, name, options, dependencies)


def fleet_on(
    client: ApiClient, namespace: str, name: str, options: KubernetesOptions, dependencies: FleetDependencies
) -> KubernetesFleet:
    """Pods in a namespace of the cluster that `client` reaches."""
    if faults := faults_of_environment(options.environment, where=f"fleets.{name}.options.environment"):
        raise InvalidInput(faults)
    calls = Calls(
        client=client,
        namespace=namespace,
        kind=options.workload_kind,
        name=options.workload_name or f"giornata-{name}",
        timeout_s=options.timeout_s,
    )

    def told() -> dict[str, str]:
        url = options.server_url or dependencies.server_url()
        return {"GIORNATA_URL": url} | dependencies.work.environment(name)

    make = partial(workload_of, name, calls.name, options, told) if options.image else None
    price = Price(micro_usd_per_hour=round(options.price_usd_per_hour * MICRO_USD), source="settings")
    return KubernetesFleet(
        name=name,
        calls=calls,
        workload=make,
        node_price=price,
        most_nodes=options.most_nodes,
        work=dependencies.work,
    )
