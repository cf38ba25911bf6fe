"""Every job ends on every driver's nodes: a fleet that can bring another machine does, and otherwise it goes back.

The control plane's loops are turned by hand; its clock is the test's, and the provider's time passes in `settle`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.fleets.under_test import FleetUnderTest
from tests.fixtures.contexts import CountedIds, FinePictures, ManualClock
from tests.fixtures.databases import new_sqlite, opened
from tests.fixtures.fleets import ask_for_work, governed, node_of, with_fleets
from tests.fixtures.store_rig import StoreRig

from giornata.blobs.filesystem import FilesystemBlobs
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.lift_bans import lift_bans
from giornata.control.attempts.ending.reported_ends import fail, release
from giornata.control.context import Context
from giornata.control.fleets.reap import reap
from giornata.control.fleets.reconcile import reconcile_fleet
from giornata.control.fleets.scale import scale_fleet
from giornata.control.ports.fleet import InstanceState
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.domain.jobs.reasons import BAN, REPORTABLE_FAILURES, Reason
from giornata.protocol.node.work import CompleteAttempt, FailAttempt, Lease, ReleaseAttempt

BANNING = sorted(reason for reason in REPORTABLE_FAILURES if BAN[reason])
# Longer than any driver's nodes are waited for.
TURNS, TURN_S = 110, 60.0


class BoundedFleet:
    """A server with one fleet of at most `most` nodes, which claim whenever they run."""

    def __init__(self, rig: StoreRig, under_test: FleetUnderTest, *, most: int) -> None:
        self._rig, self._under_test, self._requests = rig, under_test, 0
        policy = ScalingPolicy(max_nodes=most)
        governing = governed(under_test.fleet, "gpu", scaling=policy)  # type: ignore[arg-type]
        rig.ctx = with_fleets(rig.ctx, {"gpu": governing})
        if not under_test.gives_nodes:
            under_test.join(most)  # type: ignore[attr-defined]

    def leases(self) -> Iterator[tuple[Lease, str]]:
        """Each lease that a node gets, and its machine, while time passes."""
        ctx = self._rig.ctx
        for _ in range(TURNS):
            reconcile_fleet(ctx, "gpu")
            scale_fleet(ctx, "gpu")
            self._under_test.settle()
            reconcile_fleet(ctx, "gpu")
            yield from self._claims()
            lift_bans(ctx)
            reap(ctx)
            self._rig.clock.advance_s(TURN_S)

    def _claims(self) -> Iterator[tuple[Lease, str]]:
        for instance in self._under_test.fleet.list():
            if instance.state is InstanceState.RUNNING:
                self._requests += 1
                node = node_of(instance)
                lease = ask_for_work(self._rig, node, request=f"{self._requests:08d}").lease
                if lease is not None:
                    yield lease, node.machine_id


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[StoreRig]:
    clock = ManualClock()
    with opened(new_sqlite(tmp_path)) as store:
        blobs = FilesystemBlobs(
            tmp_path / "blobs", signing_key=b"k" * 32, base_url="http://blobs.invalid", clock=clock
        )
        context = Context(store=store, blobs=blobs, clock=clock, names=CountedIds(), pictures=FinePictures())
        yield StoreRig(context, store, clock)


def crashed_on(rig: StoreRig, installation: BoundedFleet, job_id: str) -> list[str]:
    """The machines on which the job crashed until it failed."""
    machines = []
    for lease, machine_id in installation.leases():
        assert lease.job_id == job_id
        machines.append(machine_id)
        report = FailAttempt(reason=Reason.CRASHED, message="last words")
        if fail(rig.ctx, lease.attempt_id, report).job_state == "failed":
            return machines
    pytest.fail(f"the job does not end; it was tried on {machines}")


def test_a_job_that_crashes_on_a_fleet_of_one_node_fails_after_three_crashes(rig, under_test):
    installation = BoundedFleet(rig, under_test, most=1)
    job_id = rig.add_job()
    machines = crashed_on(rig, installation, job_id)
    assert len(machines) == 3
    moves = under_test.fleet.limits.moves
    assert len(set(machines)) == (3 if moves else 1), "another machine comes where the provider gives one"
    assert rig.job(job_id)["error"].startswith("last words (crashed: ")


@pytest.mark.parametrize("reason", BANNING)
def test_job_banned_from_the_only_node_is_tried_again(rig, under_test, reason):
    installation = BoundedFleet(rig, under_test, most=1)
    job_id = rig.add_job()
    leases = installation.leases()
    first, _ = next(leases)
    assert fail(rig.ctx, first.attempt_id, FailAttempt(reason=reason, message="last words")).job_state == "queued"
    second, _ = next(leases)
    assert second.job_id == job_id
    assert complete(rig.ctx, second.attempt_id, CompleteAttempt(step=1)).job_state == "succeeded"


def test_a_fleet_that_can_bring_another_machine_brings_it_before_the_job_goes_back(rig, renting):
    installation = BoundedFleet(rig, renting, most=2)
    rig.add_job()
    machines = []
    for lease, machine_id in installation.leases():
        machines.append(machine_id)
        if len(machines) == 2:
            complete(rig.ctx, lease.attempt_id, CompleteAttempt(step=1))
            break
        fail(rig.ctx, lease.attempt_id, FailAttempt(reason=Reason.CRASHED, message="last words"))
    assert len(set(machines)) == 2
    assert "notice" not in rig.events("job_000001"), "no ban was lifted"


def test_a_node_that_was_asked_to_end_and_is_kept_is_replaced_and_the_job_gets_another(rig, renting):
    """Its provider let another one go in its place: then the number is right, and nobody else would come."""
    installation = BoundedFleet(rig, renting, most=1)
    job_id = rig.add_job()
    leases = installation.leases()
    first, _ = next(leases)
    (kept,) = renting.fleet.list()
    release(rig.ctx, first.attempt_id, ReleaseAttempt())
    asked = {"leaving_at_ms": rig.clock.now_ms(), "leaving_reason": "a test", "ended_at_ms": rig.clock.now_ms()}
    with rig.store.begin() as tx:
        tx.fleets.update_instances("gpu", [kept.id], **asked)
    again, _ = next(leases)
    assert again.job_id == job_id
    assert [each.id for each in renting.fleet.list()] != [kept.id]
    assert len(renting.fleet.list()) == 1
