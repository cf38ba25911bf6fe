"""Nodes as pods of a Kubernetes cluster: a Deployment, or a StatefulSet, whose size is ours.

A pod is an instance, and its id is the pod's uid: names of a StatefulSet's pods come back, uids do not. Its machine
is the node of the cluster that it runs on, for the API does not say which of a node's GPUs a pod was given.

Which pod leaves when there are to be fewer is said by `controller.kubernetes.io/pod-deletion-cost`, and a Deployment
keeps to it after three rules of its own: pods without a machine go first, then those that do not run yet, then those
that are not ready. All three have no work. A StatefulSet always takes its highest numbers.

The template of a workload is only ever changed while it has no pods: a change makes the cluster replace every pod.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kubernetes.client import ApiClient

from giornata.control.ports.fleet import Instance, Limits, Price
from giornata.domain.errors import FleetUnavailable, InstanceGone
from giornata.domain.money import MICRO_USD
from giornata.fleets.kubernetes_access import open_cluster
from giornata.fleets.kubernetes_calls import Calls, Expired, Missing, Taken
from giornata.fleets.kubernetes_options import FLEET_LABEL, Options
from giornata.fleets.kubernetes_pods import Pod, instance_of, is_over
from giornata.fleets.kubernetes_workload import TEMPLATE_DIGEST, workload_of
from giornata.fleets.opening import Surroundings

__all__ = ["KubernetesFleet", "Options", "open_fleet"]

log = logging.getLogger(__name__)

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
LEAVES_FIRST = "-1000"
LISTINGS = 3  # of one list, when the pages that are left have expired


@dataclass(slots=True, kw_only=True)
class KubernetesFleet:
    """See `giornata.control.ports.fleet.Fleet`. Keeps nothing; every call asks the cluster. Thread-safe.

    `workload` makes the Deployment or StatefulSet for so many nodes, or None where it is the operator's to make.
    """

    name: str
    calls: Calls
    workload: Callable[[int], dict[str, Any]] | None
    node_price: Price
    most_nodes: int | None = None

    @property
    def limits(self) -> Limits:
        """A pod that is replaced may come back on the machine that it was on; no machine is shut out."""
        return Limits(most_nodes=self.most_nodes, moves=False)

    def desired(self, nodes: int, *, leaving: Collection[str] = ()) -> None:
        """Set the size of the workload, and make the workload when there is none.

        Of a Deployment exactly those `leaving` go, unless a pod that does not run yet goes instead; of a StatefulSet
        those with the highest numbers.
        """
        try:
            now = self.calls.scale()
        except Missing:
            self._begin(nodes)
            return
        if nodes == now:
            return
        if nodes < now and leaving:
            self._mark(frozenset(leaving))
        if now == 0:
            self._renew_template()
        self.calls.set_scale(nodes)

    def list(self) -> Sequence[Instance]:
        """Every pod with the fleet's label that has not ended, whoever made it."""
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
        """Evict the pod: it is told to go, and the workload makes another.

        A PodDisruptionBudget that does not allow it now is FleetUnavailable. Raises InstanceGone.
        """
        pod = self._pod(instance_id)
        if pod.metadata.deletion_timestamp is None:
            self._on(pod, self.calls.evict_pod)

    def price(self) -> Price:
        """As the settings say: clusters have no prices."""
        return self.node_price

    def close(self) -> None:
        """Let go of connections."""
        self.calls.close()

    def _begin(self, nodes: int) -> None:
        if nodes == 0:
            return
        if self.workload is None:
            raise FleetUnavailable(f"{self.calls.described} is not there, and the fleet is not to make it")
        try:
            self.calls.create_workload(self.workload(nodes))
        except Taken:  # by another replica of this server, or by our own request whose answer was lost
            self.calls.set_scale(nodes)

    def _renew_template(self) -> None:
        # Only at zero: nobody is there to be replaced.
        if self.workload is None:
            return
        wanted = self.workload(0)
        there = self.calls.workload()
        digest = wanted["metadata"]["annotations"][TEMPLATE_DIGEST]
        had = (there.metadata.annotations or {}).get(TEMPLATE_DIGEST)
        if had is None or had == digest:  # without a digest it is the operator's own
            return
        log.info("fleet %s: %s gets the pods that the settings describe now", self.name, self.calls.described)
        self.calls.renew_workload(there, wanted)

    def _mark(self, leaving: frozenset[str]) -> None:
        """Give the pods that are to leave a lower cost than all others, and nobody else one of ours."""
        for pod in self._pods():
            cost = (pod.metadata.annotations or {}).get(DELETION_COST)
            wanted = LEAVES_FIRST if pod.metadata.uid in leaving else None
            if cost != wanted and (wanted or cost == LEAVES_FIRST):
                try:
                    self.calls.annotate_pod(pod, {DELETION_COST: wanted})
                except (Missing, Taken):
                    continue  # gone meanwhile

    def _pods(self) -> Sequence[Pod]:
        for _ in range(LISTINGS):
            try:
                return [pod for pod in self.calls.pods(f"{FLEET_LABEL}={self.name}") if not is_over(pod)]
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
        except (Missing, Taken):  # Taken: the name has another uid now
            self._pod(pod.metadata.uid)
            raise FleetUnavailable(f"pod {pod.metadata.name} is listed, and is not there") from None


def open_fleet(name: str, options: Options, surroundings: Surroundings) -> KubernetesFleet:
    """Pods of a cluster, reached as the options say, or as a pod of it, or by the user's kubeconfig."""
    cluster = open_cluster(options, surroundings.environment)
    return fleet_on(cluster.client, cluster.namespace, name, options, surroundings)


def fleet_on(
    client: ApiClient, namespace: str, name: str, options: Options, surroundings: Surroundings
) -> KubernetesFleet:
    """Pods in a namespace of the cluster that `client` reaches."""
    calls = Calls(
        client=client,
        namespace=namespace,
        kind=options.workload_kind,
        name=options.workload_name or f"giornata-{name}",
        timeout_s=options.timeout_s,
    )

    def url() -> str:
        return options.server_url or surroundings.server_url()

    make = partial(workload_of, name, calls.name, options, url) if options.image else None
    price = Price(micro_usd_per_hour=round(options.price_usd_per_hour * MICRO_USD), source="settings")
    return KubernetesFleet(name=name, calls=calls, workload=make, node_price=price, most_nodes=options.most_nodes)
