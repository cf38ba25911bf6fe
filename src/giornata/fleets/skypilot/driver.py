"""Nodes on whatever cloud SkyPilot reaches: each is a SkyPilot cluster of one machine that runs `giornata node`.

A cluster is an instance, and its name is the id: `giornata-FLEET-…`, never used twice, so that whatever bears it is
found by listing. Launching and taking down take minutes and are asked for without waiting; until the clouds have
acted, SkyPilot's own list of requests says what is on its way. The machine is new with each cluster, so it has the
cluster's name too. The end of the name is a digest of the task that was launched, so that a listing also says which
clusters are of other settings.
"""

import hashlib
import json
import logging
import math
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from giornata.control.ports.fleet import Instance, Limits, Outdated, Price
from giornata.domain.billing.money import MICRO_USD
from giornata.domain.errors import Fault, FleetRefused, FleetUnavailable, InstanceGone, InvalidInput, install_hint
from giornata.fleets.opening import FleetDependencies, NodeWork, faults_of_environment
from giornata.fleets.skypilot.clouds import SkyPilotCluster, asking, check_enabled_clouds, faults_of_clouds, said
from giornata.fleets.skypilot.task import NodeFacts, SkyPilotOptions, faults_of_source, task_of

log = logging.getLogger(__name__)

PRICE_KEPT_MS = 3_600_000
REQUESTS = 2000  # that are not finished; more of them are not read
FINISHED = 200  # that are, the latest
LATELY_S = 3600
OF_TASK = re.compile(r"-([0-9a-f]{8})$")


@dataclass(slots=True, kw_only=True)
class SkyPilotFleet:
    """See `giornata.control.ports.fleet.FleetDriver`. `sky` is the package, or what a test has instead of it."""

    name: str
    sky: Any
    options: SkyPilotOptions
    server_url: Callable[[], str]
    node_key: Callable[[], str]
    now_ms: Callable[[], int]
    work: NodeWork = field(default_factory=NodeWork)
    _prices: tuple[int, Mapping[str, int]] | None = field(default=None)
    _drained: set[str] = field(default_factory=set)
    _launchable: bool = False

    @property
    def limits(self) -> Limits:
        """The limits of the settings: SkyPilot knows the quotas of no cloud."""
        return Limits(most_nodes=self.options.most_nodes)

    def desired(self, nodes: int, *, leaving: Collection[str] = ()) -> None:
        """Launch what is missing, or take down what is too much: those `leaving`, then what has not started yet, then
        the youngest. What SkyPilot says is broken is taken down and made good."""
        records = self._records()
        for name, state in records.items():
            if state.broken and not state.going:
                self._down(name)
        present = {name: state for name, state in records.items() if not state.going and not state.broken}
        self._drained &= set(records)
        if nodes > len(present):
            self._check_clouds()
        for _ in range(nodes - len(present)):
            self._launch(self.options.infra)
        order = sorted(
            present,
            key=lambda name: (
                *(name not in leaving, name not in self._drained),
                *(present[name].up, -present[name].since_s, name),
            ),
        )
        for name in order[: max(0, len(present) - nodes)]:
            self._down(name)

    def list(self) -> Sequence[Instance]:
        """Every cluster whose name is of this fleet, and those that are asked for and not made yet.

        Raises FleetRefused when there is none and no cloud could launch one: that is said at the server's start then.
        """
        records = self._records()
        if not records:
            self._check_clouds()
        return [state.instance(name) for name, state in sorted(records.items())]

    def reallocate(self, instance_id: str, *, reason: str) -> None:
        """Take the cluster down and launch another, not in its region if there are others to choose from."""
        state = self._record(instance_id)
        if state.going:
            return
        log.info("fleet %s: cluster %s is taken down: %s", self.name, instance_id, reason)
        self._down(instance_id)
        elsewhere = tuple(each for each in self.options.infra if not state.is_in(each))
        self._launch(elsewhere or self.options.infra)

    def drain(self, instance_id: str) -> None:
        """Keep the mark in this process while it lives: SkyPilot has none, but only this driver lowers the number.
        Raises InstanceGone."""
        self._record(instance_id)
        self._drained.add(instance_id)

    def price(self) -> Price:
        """Return the price of the settings; else the lowest in SkyPilot's catalog, kept for an hour."""
        if self.options.price_usd_per_hour is not None:
            micro = round(self.options.price_usd_per_hour * MICRO_USD)
            return Price(micro_usd_per_hour=micro, source="settings")
        return Price(micro_usd_per_hour=min(self.prices().values()), source="provider")

    def prices(self) -> Mapping[str, int]:
        """See PricesOffers: the cheapest of the catalog in each `cloud/region`, kept for an hour; none where the
        settings say what every node costs."""
        if self.options.price_usd_per_hour is not None:
            return {}
        now_ms = self.now_ms()
        if self._prices is None or now_ms - self._prices[0] >= PRICE_KEPT_MS:
            self._prices = now_ms, self._catalog_prices()
        return self._prices[1]

    @property
    def one_by_one(self) -> bool:
        """True: each cluster has a task of its own."""
        return True

    def outdated(self) -> Outdated:
        """See Renews. Clusters whose names say of no task are of before, and are left alone."""
        old = self._of_other_tasks()
        return Outdated(settings=("task",) if old else (), instances=old)

    def renew(self, instance_ids: Collection[str]) -> None:
        """See Renews. The cluster is taken down, and another one launched."""
        for name in sorted(self._of_other_tasks() & set(instance_ids)):
            self._down(name)
            self._launch(self.options.infra)

    def shortage(self) -> str:
        """See TellsShortage: why the latest launch failed, within the hour."""
        with asking(self.sky):
            finished = self.sky.api_status(all_status=True, limit=FINISHED)
        since_s = self.now_ms() / 1000 - LATELY_S
        failed = [
            each
            for each in finished
            if (each.cluster_name or "").startswith(self._prefix)
            and each.name.removeprefix("sky.") == "launch"
            and str(each.status).rpartition(".")[2] == "FAILED"
            and (each.finished_at or each.created_at) >= since_s
        ]
        if not failed:
            return ""
        last = max(failed, key=lambda each: each.finished_at or each.created_at)
        launches = "a launch" if len(failed) == 1 else f"{len(failed)} launches"
        return f"{launches} failed within the hour, at last: {last.status_msg or self._error_of(last.request_id)}"

    def close(self) -> None:
        """Do nothing: the driver holds no connection."""

    def _check_clouds(self) -> None:
        """Check the clouds until one was found able to launch a node. Clouds in `infra` were checked before."""
        if not self._launchable and not self.options.infra:
            check_enabled_clouds(self.sky, self.options)
        self._launchable = True

    def _catalog_prices(self) -> Mapping[str, int]:
        accelerator, _, count = self.options.accelerators.partition(":")
        with asking(self.sky):
            request = self.sky.list_accelerators(
                name_filter=f"^{re.escape(accelerator)}$",
                quantity_filter=int(count or 1),
                all_regions=True,
            )
            offers = self.sky.get(request).get(accelerator, [])
        found: dict[str, int] = {}
        for offer in offers:
            usd = offer.spot_price if self.options.use_spot else offer.price
            place = SkyPilotCluster(cloud=offer.cloud, region=offer.region)
            if usd is None or math.isnan(usd) or not self._allowed(place):  # NaN: none there
                continue
            price = round(usd * MICRO_USD)
            found[place.place] = min(found.get(place.place, price), price)
        if not found:
            raise FleetUnavailable(f"SkyPilot's catalog has no price of {self.options.accelerators}")
        return found

    def _known_price(self) -> float | None:
        if self.options.price_usd_per_hour is not None or self._prices is None:
            return self.options.price_usd_per_hour
        return min(self._prices[1].values()) / MICRO_USD

    def _allowed(self, place: SkyPilotCluster) -> bool:
        return not self.options.infra or any(place.is_in(each) for each in self.options.infra)

    def _launch(self, infra: Sequence[str]) -> None:
        name = f"{self._prefix}{self.now_ms():x}-{secrets.token_hex(2)}-{self._digest()}"
        config = task_of(name, self.options, infra, self._node_facts(key=self.node_key()))
        if (price := self._known_price()) is not None:
            config["envs"]["GIORNATA_PRICE_USD_PER_HOUR"] = f"{price:g}"
        with asking(self.sky):
            self.sky.launch(self.sky.Task.from_yaml_config(config), cluster_name=name)

    def _of_other_tasks(self) -> frozenset[str]:
        digest = self._digest()
        return frozenset(
            name
            for name, state in self._records().items()
            if not state.going and not state.broken and (of := OF_TASK.search(name)) and of[1] != digest
        )

    def _digest(self) -> str:
        """Return the digest of the task without its key. The place of the launch does not matter."""
        task = task_of("", self.options, self.options.infra, self._node_facts(key=""))
        return hashlib.sha256(json.dumps(task, sort_keys=True).encode()).hexdigest()[:8]

    def _node_facts(self, *, key: str) -> NodeFacts:
        return NodeFacts(fleet=self.name, url=self.server_url(), key=key, work=self.work)

    def _error_of(self, request_id: str) -> str:
        """Return the error of a failed request. SkyPilot raises the error when the driver asks for the result."""
        try:
            with asking(self.sky):
                self.sky.get(request_id)
        except (FleetUnavailable, FleetRefused) as error:
            return said(error.__cause__ or error)
        return "it does not say why"

    def _down(self, name: str) -> None:
        with asking(self.sky):
            try:
                self.sky.down(name)
            except self.sky.exceptions.ClusterDoesNotExist:
                return

    @property
    def _prefix(self) -> str:
        return f"giornata-{self.name}-"

    def _record(self, instance_id: str) -> SkyPilotCluster:
        found = self._records().get(instance_id)
        if found is None:
            raise InstanceGone(f"SkyPilot lists no cluster {instance_id}")
        return found

    def _records(self) -> dict[str, SkyPilotCluster]:
        """Return requested and existing clusters by name.

        Requests are read first: a request that ends in between is a cluster in the second reply.
        """
        with asking(self.sky):
            pending = self.sky.api_status(limit=REQUESTS)
            clusters = self.sky.get(self.sky.status(refresh=self.sky.StatusRefreshMode.AUTO))
        found = {each.name: SkyPilotCluster.of(each) for each in clusters if each.name.startswith(self._prefix)}
        for request in pending:
            name, verb = request.cluster_name or "", request.name.removeprefix("sky.")
            if name.startswith(self._prefix) and verb == "launch":
                found.setdefault(name, SkyPilotCluster())
            if name in found and verb == "down":
                found[name].going = True
        return found


def open_fleet(name: str, options: SkyPilotOptions, dependencies: FleetDependencies) -> SkyPilotFleet:
    """Clusters of the SkyPilot API server that this machine's SkyPilot is set up for.

    Raises InvalidInput when SkyPilot is not installed. Importing it takes seconds, so nobody else does.
    """
    try:
        import sky
    except ModuleNotFoundError as error:
        message, hint = f"the driver skypilot needs {error.name}", install_hint("server", "skypilot")
        raise InvalidInput([Fault(where=f"fleets.{name}.driver", message=message, hint=hint)]) from None
    return fleet_on(sky, name, options, dependencies)


def fleet_on(sky: Any, name: str, options: SkyPilotOptions, dependencies: FleetDependencies) -> SkyPilotFleet:
    """Clusters that the package `sky` launches. Raises InvalidInput for what no machine could be launched with."""
    where = f"fleets.{name}.options"
    faults = faults_of_environment(options.environment, where=f"{where}.environment")
    faults += faults_of_source(options, where=where)
    faults += faults_of_clouds(sky, options, options.infra, where=where)
    if faults:
        raise InvalidInput(faults)
    return SkyPilotFleet(
        name=name,
        sky=sky,
        options=options,
        server_url=dependencies.server_url,
        node_key=dependencies.node_key,
        now_ms=dependencies.now_ms,
        work=dependencies.work,
    )
