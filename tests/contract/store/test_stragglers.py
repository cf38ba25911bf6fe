"""A slow machine gives its job back when that pays; and everything that looks slow and is not keeps it."""

from typing import Any

import pytest
from tests.fixtures.store_rig import NODE_CALLER, StoreRig

from giornata.control.attempts.claiming.claim import claim_once
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.reported_ends import release
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.fleets.stragglers import move_stragglers
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import Claim, CompleteAttempt, Heartbeat, Lease, Order, ReleaseAttempt
from giornata.store import schema

STEPS = 1400


def lease(rig: StoreRig, number: int, *, device: str = "RTX 4090", shape: str = "shape-a", **job: Any) -> Lease:
    """A new job on the machine of this number."""
    rig.add_job(shape_key=shape, total_steps=STEPS, **job)
    node = rig.node(number).model_copy(update={"device": device})
    request_id = f"request-{number}-{rig.clock.now_ms()}"
    reply = claim_once(rig.ctx, NODE_CALLER, Claim(request_id=request_id, node=node, kinds=("train",)))
    assert reply.lease is not None, reply
    return reply.lease


def idle_node(rig: StoreRig, number: int = 90, device: str = "RTX 4090") -> None:
    """A node that waits for any work; asks while the queue is empty."""
    node = rig.node(number).model_copy(update={"device": device})
    claim = Claim(request_id=f"request-{number}-{rig.clock.now_ms()}", node=node, kinds=("train", "x-own"))
    assert claim_once(rig.ctx, NODE_CALLER, claim).lease is None


def run(rig: StoreRig, steps_s: dict[str, float], *, seconds: float = 600.0, first_step_s: float = 30.0) -> None:
    """Let these attempts, by id, beat for a while at so many seconds a step."""
    rig.clock.advance_s(first_step_s)
    for attempt_id in steps_s:
        heartbeat(rig.ctx, attempt_id, Heartbeat(step=1))
    done_s = 0.0
    while done_s < seconds:
        rig.clock.advance_s(30)
        done_s += 30
        for attempt_id, step_s in steps_s.items():
            heartbeat(rig.ctx, attempt_id, Heartbeat(step=1 + int(done_s / step_s)))


def cohort(rig: StoreRig, count: int = 7, *, slow_s: float = 12.0, **slow: Any) -> tuple[Lease, list[Lease]]:
    """One that is slow on machine 1, and others with a second for each step."""
    one = lease(rig, 1, **slow)
    others = [lease(rig, number) for number in range(2, 2 + count)]
    run(rig, {one.attempt_id: slow_s, **{each.attempt_id: 1.0 for each in others}})
    return one, others


def order_of(rig: StoreRig, held: Lease) -> Order:
    return heartbeat(rig.ctx, held.attempt_id, Heartbeat(step=1)).order


def test_a_slow_machine_is_told_to_give_its_job_back_and_another_goes_on(rig: StoreRig) -> None:
    slow, others = cohort(rig)
    rig.checkpoint(slow, 40)
    idle_node(rig)
    assert move_stragglers(rig.ctx) == 1
    assert order_of(rig, slow) is Order.RELEASE
    assert {order_of(rig, each) for each in others} == {Order.CONTINUE}
    notice = rig.last_event(slow.job_id, "notice")
    assert (notice["name"], notice["usual_step_s"]) == ("too-slow", pytest.approx(1.0))
    assert release(rig.ctx, slow.attempt_id, ReleaseAttempt(step=51)).job_state == "queued"
    attempt = rig.attempt(slow.attempt_id)
    assert (attempt["reason"], attempt["last_step"]) == ("too_slow", 51)
    assert rig.job(slow.job_id)["fruitless"] == 0
    assert [row["reason"] for row in rig.rows(schema.bans)] == ["too_slow"]
    assert [row["reason"] for row in rig.rows(schema.strikes)] == ["too_slow"]
    assert rig.claim(1).lease is None, "never this machine again"
    again = rig.lease(90)
    assert (again.job_id, again.checkpoints[0].step) == (slow.job_id, 40)


@pytest.mark.parametrize(("step_s", "moved"), [(1.38, 0), (3.0, 1)])
def test_jobs_that_fast_machines_do_make_no_other_machine_slow(rig: StoreRig, step_s: float, moved: int) -> None:
    """Five machines that are faster than most do four jobs each, while the others begin their first."""
    for _ in range(4):
        fast = [lease(rig, number) for number in range(2, 7)]
        run(rig, {each.attempt_id: 0.8 for each in fast}, seconds=150.0)
        for each in fast:
            complete(rig.ctx, each.attempt_id, CompleteAttempt(step=STEPS))
    this = lease(rig, 1)
    others = {lease(rig, 7 + number).attempt_id: 0.95 + 0.05 * number for number in range(7)}
    run(rig, {this.attempt_id: step_s, **others}, seconds=150.0)
    idle_node(rig)
    assert move_stragglers(rig.ctx) == moved


def test_the_report_of_an_ordered_end_may_come_twice(rig: StoreRig) -> None:
    slow, _ = cohort(rig)
    idle_node(rig)
    move_stragglers(rig.ctx)
    release(rig.ctx, slow.attempt_id, ReleaseAttempt(step=51))
    before = rig.whole_database()
    assert release(rig.ctx, slow.attempt_id, ReleaseAttempt(step=51)).job_state == "queued"
    assert rig.whole_database() == before


def test_straggler_preempted_after_release_order_gets_no_strike(rig: StoreRig) -> None:
    slow, _ = cohort(rig)
    idle_node(rig)
    move_stragglers(rig.ctx)
    release(rig.ctx, slow.attempt_id, ReleaseAttempt(reason=Reason.PREEMPTED, step=51))
    assert rig.attempt(slow.attempt_id)["reason"] == "preempted"
    assert rig.rows(schema.strikes) == []


def test_straggler_is_not_moved_without_an_idle_node_of_the_same_device(rig: StoreRig) -> None:
    slow, others = cohort(rig)
    for each in others:
        complete(rig.ctx, each.attempt_id, CompleteAttempt(step=STEPS))
    rig.clock.advance_s(150)
    assert order_of(rig, slow) is Order.CONTINUE
    assert move_stragglers(rig.ctx) == 0
    idle_node(rig, 91, device="RTX 3060")
    assert move_stragglers(rig.ctx) == 0, "another device is no better"
    idle_node(rig)
    assert move_stragglers(rig.ctx) == 1


def test_stragglers_of_one_cohort_are_moved_one_at_a_time_slowest_first(rig: StoreRig) -> None:
    one, two = lease(rig, 1), lease(rig, 2)
    others = [lease(rig, number) for number in range(3, 15)]
    run(rig, {one.attempt_id: 12.0, two.attempt_id: 15.0, **{each.attempt_id: 1.0 for each in others}})
    idle_node(rig)
    assert [move_stragglers(rig.ctx), move_stragglers(rig.ctx)] == [1, 0]
    assert order_of(rig, two) is Order.RELEASE, "the slowest first"


def test_a_tenth_of_a_large_cohort_goes_at_a_time(rig: StoreRig) -> None:
    slow = [lease(rig, number) for number in range(1, 4)]
    others = [lease(rig, number) for number in range(4, 22)]
    run(rig, {**{each.attempt_id: 12.0 for each in slow}, **{each.attempt_id: 1.0 for each in others}})
    for number in range(90, 93):
        idle_node(rig, number)
    assert [move_stragglers(rig.ctx), move_stragglers(rig.ctx)] == [2, 0], "21 live attempts"
    told = [each for each in slow if order_of(rig, each) is Order.RELEASE]
    assert len(told) == 2
    release(rig.ctx, told[0].attempt_id, ReleaseAttempt(step=51))
    assert move_stragglers(rig.ctx) == 1, "the third when the first has let go"


def test_no_two_are_moved_to_one_node(rig: StoreRig) -> None:
    """The second would wait longer for a node than its job takes where it is."""
    slow = [lease(rig, number) for number in (1, 2)]
    others = [lease(rig, number) for number in range(3, 21)]
    run(rig, {**{each.attempt_id: 12.0 for each in slow}, **{each.attempt_id: 1.0 for each in others}})
    idle_node(rig)
    for each in others:
        complete(rig.ctx, each.attempt_id, CompleteAttempt(step=STEPS))
    rig.clock.advance_s(rig.ctx.policy.node_gone_after_s + 1)
    for each in slow:
        order_of(rig, each)
    idle_node(rig)
    assert move_stragglers(rig.ctx) == 1


@pytest.mark.parametrize(
    ("slow_s", "count", "slow"),
    [
        pytest.param(1.2, 7, {}, id="heat takes a fifth"),
        pytest.param(12.0, 5, {}, id="a small cohort"),
        pytest.param(12.0, 7, {"shape": "shape-b"}, id="another resolution"),
        pytest.param(12.0, 7, {"device": "RTX 3060"}, id="another device"),
        pytest.param(12.0, 7, {"shape": ""}, id="a shape that nobody knows"),
        pytest.param(12.0, 7, {"kind": "x-own"}, id="another kind"),
    ],
)
def test_job_that_only_looks_slow_is_not_moved_as_straggler(
    rig: StoreRig, slow_s: float, count: int, slow: dict[str, Any]
) -> None:
    if "kind" in slow:
        rig.add_job(kind="x-own", shape_key="shape-a", total_steps=STEPS)
        node = rig.node(1).model_copy(update={"device": "RTX 4090"})
        held = rig.lease(node, kinds=("x-own",))
        others = [lease(rig, number) for number in range(2, 2 + count)]
        run(rig, {held.attempt_id: slow_s, **{each.attempt_id: 1.0 for each in others}})
    else:
        held, _ = cohort(rig, count, slow_s=slow_s, **slow)
    idle_node(rig, device=slow.get("device", "RTX 4090"))
    assert move_stragglers(rig.ctx) == 0
    assert order_of(rig, held) is Order.CONTINUE


def test_several_in_one_batch_are_not_compared_with_one_alone(rig: StoreRig) -> None:
    """Two share a step of 3 seconds, where others alone take one."""
    others = [lease(rig, number) for number in range(2, 9)]
    pair = [lease(rig, 1, joint_key="key"), rig.add_job(shape_key="shape-a", total_steps=STEPS, joint_key="key")]
    node = rig.node(1).model_copy(update={"device": "RTX 4090"})
    beside = rig.lease(node, joint_key="key")
    assert beside.job_id == pair[1]
    steps_s = {pair[0].attempt_id: 3.0, beside.attempt_id: 3.0, **{each.attempt_id: 1.0 for each in others}}
    run(rig, steps_s)
    idle_node(rig)
    assert move_stragglers(rig.ctx) == 0


def test_busy_nodes_will_be_done_in_time(rig: StoreRig) -> None:
    """Seven jobs of 1,400 seconds: one of them ends soon, where the slow one has hours to go."""
    slow, others = cohort(rig)
    assert len(others) == 7
    assert move_stragglers(rig.ctx) == 1
    assert order_of(rig, slow) is Order.RELEASE


def test_a_first_step_that_compiles_does_not_count(rig: StoreRig) -> None:
    """Ten minutes to the first step, then as fast as the others."""
    others = [lease(rig, number) for number in range(2, 9)]
    run(rig, {each.attempt_id: 1.0 for each in others})
    compiling = lease(rig, 1)
    for _ in range(20):
        rig.clock.advance_s(30)
        for each in [*others, compiling]:
            heartbeat(rig.ctx, each.attempt_id, Heartbeat(step=0))
    run(rig, {compiling.attempt_id: 1.0, **{each.attempt_id: 1.0 for each in others}}, seconds=300)
    idle_node(rig)
    assert move_stragglers(rig.ctx) == 0


def test_the_last_steps_are_made_where_it_is(rig: StoreRig) -> None:
    slow, others = lease(rig, 1), [lease(rig, number) for number in range(2, 9)]
    steps_s = {slow.attempt_id: 12.0, **{each.attempt_id: 1.0 for each in others}}
    run(rig, steps_s)
    with rig.store.begin() as tx:
        tx.jobs.update(slow.job_id, total_steps=53)  # two to go
    idle_node(rig)
    assert move_stragglers(rig.ctx) == 0


def test_few_steps_make_no_straggler(rig: StoreRig) -> None:
    others = [lease(rig, number) for number in range(2, 9)]
    run(rig, {each.attempt_id: 1.0 for each in others})
    new = lease(rig, 1)
    run(rig, {new.attempt_id: 12.0, **{each.attempt_id: 1.0 for each in others}}, seconds=90)
    idle_node(rig)
    assert move_stragglers(rig.ctx) == 0


def test_ended_attempts_are_members_too(rig: StoreRig) -> None:
    for number in range(2, 9):
        held = lease(rig, number)
        run(rig, {held.attempt_id: 1.0})
        complete(rig.ctx, held.attempt_id, CompleteAttempt(step=STEPS))
    slow = lease(rig, 1)
    run(rig, {slow.attempt_id: 12.0})
    idle_node(rig)
    assert move_stragglers(rig.ctx) == 1


def test_an_attempt_that_beats_and_stands_still_is_stuck(rig: StoreRig) -> None:
    held = lease(rig, 1)
    run(rig, {held.attempt_id: 1.0})
    for _ in range(62):
        rig.clock.advance_s(30)
        last = heartbeat(rig.ctx, held.attempt_id, Heartbeat(step=601)).order
    assert last is Order.CONTINUE
    assert move_stragglers(rig.ctx) == 1
    assert order_of(rig, held) is Order.RELEASE
    assert rig.last_event(held.job_id, "notice")["name"] == "stuck"


@pytest.mark.parametrize(("steps", "stuck_at_s"), [(0, 45_000), (1, 46_800)])
def test_attempt_that_beats_for_hours_without_a_second_step_is_stuck(
    rig: StoreRig, steps: int, stuck_at_s: int
) -> None:
    held = lease(rig, 1)
    for beaten_s in range(1800, stuck_at_s + 1800, 1800):
        rig.clock.advance_s(1800)
        heartbeat(rig.ctx, held.attempt_id, Heartbeat(step=steps))
        assert move_stragglers(rig.ctx) == (beaten_s == stuck_at_s)
    assert order_of(rig, held) is Order.RELEASE


def test_job_without_a_known_number_of_steps_is_not_moved_for_having_made_none(rig: StoreRig) -> None:
    held = lease(rig, 1)
    with rig.store.begin() as tx:
        tx.jobs.update(held.job_id, total_steps=None)
    for _ in range(30):
        rig.clock.advance_s(1800)
        heartbeat(rig.ctx, held.attempt_id, Heartbeat())
        assert move_stragglers(rig.ctx) == 0


@pytest.mark.parametrize("why", ["its steps are long", "it is done", "it is silent", "not for so long"])
def test_job_that_only_looks_stuck_is_not_moved_as_straggler(rig: StoreRig, why: str) -> None:
    held = lease(rig, 1)
    run(rig, {held.attempt_id: 200.0 if why == "its steps are long" else 1.0})
    step = {"its steps are long": 4, "it is done": STEPS}.get(why, 601)
    for _ in range(50 if why == "not for so long" else 62):
        rig.clock.advance_s(30)
        if why != "it is silent":
            heartbeat(rig.ctx, held.attempt_id, Heartbeat(step=step))
    assert move_stragglers(rig.ctx) == 0


def test_twice_too_slow_within_a_day_is_the_end_of_hand_out(rig: StoreRig) -> None:
    for _ in range(2):
        slow, others = cohort(rig)
        idle_node(rig)
        assert move_stragglers(rig.ctx) == 1
        release(rig.ctx, slow.attempt_id, ReleaseAttempt(step=51))
        complete(rig.ctx, rig.lease(90).attempt_id, CompleteAttempt(step=STEPS))
        for each in others:
            complete(rig.ctx, each.attempt_id, CompleteAttempt(step=STEPS))
        rig.clock.advance_s(3700)
    rig.add_job()
    assert rig.claim(1).reason == "quarantined"


def go_on(rig: StoreRig, steps_s: dict[str, float], done: dict[str, float], *, seconds: float) -> int:
    """Beat on and turn the loop every 30 s, as a server does; how many were moved."""
    moved = 0
    for _ in range(int(seconds / 30)):
        rig.clock.advance_s(30)
        for attempt_id, step_s in steps_s.items():
            done[attempt_id] += 30 / step_s
            heartbeat(rig.ctx, attempt_id, Heartbeat(step=1 + int(done[attempt_id])))
        moved += move_stragglers(rig.ctx)
    return moved


def eight_at_work(rig: StoreRig) -> tuple[str, dict[str, float], dict[str, float]]:
    """One attempt on machine 1, seven on others, each with a second for each step; how far they are."""
    held = [lease(rig, number, shape="shape-a") for number in range(1, 9)]
    for each in held:
        with rig.store.begin() as tx:
            tx.jobs.update(each.job_id, total_steps=6000)
    steps_s = {each.attempt_id: 1.0 for each in held}
    run(rig, steps_s, seconds=0)
    return held[0].attempt_id, steps_s, dict.fromkeys(steps_s, 0.0)


def test_a_machine_that_throttles_after_a_thousand_steps_is_found_within_minutes(rig: StoreRig) -> None:
    hot, steps_s, done = eight_at_work(rig)
    assert go_on(rig, steps_s, done, seconds=1200) == 0
    assert go_on(rig, {**steps_s, hot: 2.0}, done, seconds=600) == 1
    assert rig.attempt(hot)["order"] == "release"
    assert rig.last_event(rig.attempt(hot)["job_id"], "notice")["name"] == "too-slow"


def test_a_machine_that_was_slow_and_is_not_any_more_keeps_its_job(rig: StoreRig) -> None:
    """Slow for twenty minutes in which nobody else could take the job, then as fast as the others."""
    cold, steps_s, done = eight_at_work(rig)
    alone = {attempt_id: each for attempt_id, each in steps_s.items() if attempt_id != cold}
    for _ in range(40):
        rig.clock.advance_s(30)
        for attempt_id in alone:
            done[attempt_id] += 30.0
            heartbeat(rig.ctx, attempt_id, Heartbeat(step=1 + int(done[attempt_id])))
        done[cold] += 5.0
        heartbeat(rig.ctx, cold, Heartbeat(step=1 + int(done[cold])))
    rig.ctx.memory.trails.clear()
    assert go_on(rig, steps_s, done, seconds=900) == 0


def test_hours_that_differ_by_a_tenth_and_a_short_pause_condemn_nobody(rig: StoreRig) -> None:
    this, steps_s, done = eight_at_work(rig)
    assert go_on(rig, steps_s, done, seconds=600) == 0
    assert go_on(rig, {**steps_s, this: 10.0}, done, seconds=90) == 0, "90 s in which it does something else"
    assert go_on(rig, {**steps_s, this: 1.1}, done, seconds=1200) == 0


def test_a_server_that_has_just_started_watches_before_it_judges(rig: StoreRig) -> None:
    """Another server's memory is empty: of an attempt that is hours old it says nothing in its first two minutes."""
    hot, steps_s, done = eight_at_work(rig)
    assert go_on(rig, steps_s, done, seconds=900) == 0
    rig.ctx.memory.trails.clear()
    assert go_on(rig, {**steps_s, hot: 3.0}, done, seconds=120) == 0
    assert go_on(rig, {**steps_s, hot: 3.0}, done, seconds=120) == 1
