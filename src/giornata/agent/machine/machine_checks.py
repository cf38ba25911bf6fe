"""The checks whether this machine is fit for the fleet: all of them at the start, some before each claim."""

import logging
from dataclasses import replace
from typing import Protocol

from giornata.agent.claiming import AgentDeps, Claiming, ExitCode, GaveUp
from giornata.agent.machine.bandwidth import BandwidthProbe
from giornata.agent.machine.node_probes import NodeProbes
from giornata.agent.machine.nvidia_smi import query_gpu
from giornata.client.node import NodeClient
from giornata.domain.errors import GiornataError, NotFound
from giornata.domain.machines.node_checks import GIB, NodeMeasured, NodeThresholds, shortcomings
from giornata.protocol.node.node_checks import NodeChecks, NodeFigures, NodePolicy

log = logging.getLogger(__name__)

# What the engine's own context takes on the card, which is not there yet when a node starts.
CONTEXT_BYTES = 1 * GIB
REPORTS = 3
LONGEST_SHORTCOMING = 1000
# Earlier programs may still hold memory, and others' traffic the link: a node that lacks something looks again.
LOOKS = 2
SECOND_LOOK_S = 15.0


class Provider(Protocol):
    """The provider of the machine, as far as a node can reach it."""

    def leave(self, reason: str) -> None:
        """Ask for another machine in place of this one, as far as the provider offers that. Waits no longer than
        some seconds, and raises nothing: the node ends in any case."""


class MachineChecks:
    """Measures the machine, reports to the server, and ends a node that is not fit.

    Used by the node's own thread alone. Nothing is asked of a node whose fleet the server does not know.
    """

    def __init__(self, deps: AgentDeps, *, claiming: Claiming, provider: Provider | None, probes: NodeProbes) -> None:
        self._deps, self._settings, self._node = deps, deps.settings, deps.node
        self._claiming, self._provider, self._probes = claiming, provider, probes
        self._wanted = NodeThresholds()
        self._figures = NodeMeasured()
        self.told_to_leave = False
        self._lacking_since_s: float | None = None

    def begin(self) -> None:
        """Run the checks of the start; the work directory exists. Raises GaveUp when the machine is not fit."""
        asked_at_s = 0.0

        def ask() -> NodePolicy:
            nonlocal asked_at_s
            asked_at_s = self._probes.wall_clock_s()
            return _policy(self._node, self._settings.fleet)

        policy = self._claiming.persist(ask)
        if policy is None or policy.at is None:
            return  # told to leave, or a server from before there were checks
        answered_at_s = self._probes.wall_clock_s()
        self._wanted = _thresholds(policy)
        lacking: tuple[str, ...] = ()
        for look in range(LOOKS):
            self._figures = replace(
                self._measure(policy),
                clock_ahead_s=(asked_at_s + answered_at_s) / 2 - policy.at.timestamp(),
                clock_within_s=abs(answered_at_s - asked_at_s) / 2,
            )
            lacking = shortcomings(self._figures, self._wanted)
            if not lacking:
                break
            if look < LOOKS - 1:
                log.warning("not fit at the first look: %s", "; ".join(lacking))
                self._deps.sleep(SECOND_LOOK_S)
        if lacking:
            self._leave(lacking)
        self._report(lacking)

    def is_fit(self, *, engine_free_vram_bytes: int | None) -> bool:
        """Check before a claim: space on the disk, and memory on the card as the engine has last said (None: it says
        nothing). A node that stays unfit for `unfit_s` leaves: raises GaveUp."""
        free_vram = None if engine_free_vram_bytes is None else engine_free_vram_bytes + CONTEXT_BYTES
        wanted = NodeThresholds(
            min_disk_bytes=self._wanted.min_disk_bytes,
            min_vram_bytes=None if free_vram is None else self._wanted.min_vram_bytes,
        )
        if wanted == NodeThresholds():
            return True
        now = NodeMeasured(free_disk_bytes=self._free_disk(), free_vram_bytes=free_vram)
        lacking = shortcomings(now, wanted)
        self._figures = replace(
            self._figures,
            free_disk_bytes=now.free_disk_bytes,
            free_vram_bytes=now.free_vram_bytes or self._figures.free_vram_bytes,
        )
        self._note(lacking)
        return not lacking

    def give_up(self, why: str) -> None:
        """Tell the server that no engine starts here, so that no job waits for this node. The node ends."""
        self._report((why[:LONGEST_SHORTCOMING],), leaving=True)

    def _note(self, lacking: tuple[str, ...]) -> None:
        if not lacking:
            if self._lacking_since_s is not None:
                log.info("fit again: claims go on")
                self._lacking_since_s = None
                self._report(())
            return
        if self._lacking_since_s is None:
            self._lacking_since_s = self._deps.monotonic_s()
            log.warning("not fit for more work, claims pause: %s", "; ".join(lacking))
        if self._deps.monotonic_s() - self._lacking_since_s >= self._settings.unfit_s:
            self._leave(lacking)
        self._report(lacking)

    def _measure(self, policy: NodePolicy) -> NodeMeasured:
        visible, wanted = self._probes.visible, self._wanted
        graphics = query_gpu(self._probes.run, visible=visible)
        links = BandwidthProbe(self._deps.storage, self._settings.work_dir, monotonic_s=self._deps.monotonic_s)
        down, up = wanted.min_download_bytes_per_s, wanted.min_upload_bytes_per_s
        return NodeMeasured(
            driver=graphics.driver,
            graphics_trouble=graphics.trouble,
            free_vram_bytes=graphics.free_vram_bytes,
            free_disk_bytes=self._free_disk(),
            model_store_bytes=min(
                self._settings.model_store_bytes, self._probes.total_bytes(self._settings.work_dir)
            ),
            download_bytes_per_s=(
                links.download_bytes_per_s(policy.download, wanted=down) if policy.download and down else None
            ),
            upload_bytes_per_s=links.upload_bytes_per_s(policy.upload, wanted=up) if policy.upload and up else None,
        )

    def _free_disk(self) -> int:
        return self._probes.usable_bytes(self._settings.work_dir, wanted=self._wanted.min_disk_bytes)

    def _leave(self, lacking: tuple[str, ...]) -> None:
        for each in lacking:
            log.error("this machine is not fit for fleet %s: %s", self._settings.fleet, each)
        self._report(lacking, leaving=True)
        if self._provider is not None:
            self._provider.leave("; ".join(lacking))
        raise GaveUp(ExitCode.UNFIT)

    def _report(self, lacking: tuple[str, ...], *, leaving: bool = False) -> None:
        """Report to the server. A report that does not arrive changes nothing here."""
        claim = self._claiming.request()
        checks = NodeChecks(
            node=claim.node,
            kinds=claim.kinds,
            figures=NodeFigures(**{name: getattr(self._figures, name) for name in NodeMeasured.__slots__}),
            shortcomings=lacking,
            leaving=leaving,
        )
        for left in reversed(range(REPORTS if leaving else 1)):
            try:
                self.told_to_leave = self._node.report_checks(checks).drain
                return
            except GiornataError as error:
                log.warning("the checks could not be reported: %s", error)
                if error.retryable and left:
                    self._claiming.pause()


def _policy(node: NodeClient, fleet: str) -> NodePolicy:
    try:
        return node.policy(fleet)
    except NotFound:
        return NodePolicy()


def _thresholds(policy: NodePolicy) -> NodeThresholds:
    return NodeThresholds(**{name: getattr(policy, name) for name in NodeThresholds.__slots__})
