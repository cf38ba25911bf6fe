"""The parts of the model that figures hang on."""

import dataclasses
import math
import statistics
from types import SimpleNamespace

import pytest
from benchmarks.simulate.regret import bound_of

from giornata.domain.errors import FleetUnavailable, InstanceGone
from giornata.domain.jobs.reasons import Reason
from giornata.simulate.agenda import Agenda
from giornata.simulate.draws import by_curve, exponential_s, rng
from giornata.simulate.node import ModeledNode
from giornata.simulate.plane import Grant
from giornata.simulate.rented.course import HOUR_MS, StepTimeline, hour_factor
from giornata.simulate.rented.machines import HOUR_NOISE, STEP_NOISE, MachinePool, SimulatedMachine
from giornata.simulate.rented.provider import Container, ModeledFleet, SimulatedNode, SimulatedOffer
from giornata.simulate.rented.trainer import ANCESTOR_TRAINER
from giornata.simulate.results.billed_time import IDLE, TRAIN, BilledTime, InstanceTimer
from giornata.simulate.results.story import JobTrace
from giornata.simulate.run import plan_fault
from giornata.simulate.scenario import PlannedFault
from giornata.simulate.scenarios import SCENARIOS
from giornata.simulate.work import SimulatedAttempt
from giornata.simulate.world import Simulation


class Tenant(SimulatedNode):
    """Notes what is done to it."""

    def __init__(self) -> None:
        self.begun = 0
        self.lived_on_s: float | None = None

    def begin(self) -> None:
        self.begun += 1

    def vanish(self, *, lives_on_s: float) -> None:
        self.lived_on_s = lives_on_s


def _fleet(**offer: object) -> tuple[Agenda, ModeledFleet, BilledTime]:
    agenda, billed_time = Agenda(), BilledTime()
    plain: dict[str, object] = {"mtbi_s": math.inf, "start_min": ((0.0, 1.0), (1.0, 1.0))}
    fleet = ModeledFleet(
        SimulatedOffer(**{**plain, **offer}),  # type: ignore[arg-type]
        agenda=agenda,
        seed=0,
        billed_time=billed_time,
        settle=lambda _: Tenant(),
    )
    return agenda, fleet, billed_time


def _until(agenda: Agenda, seconds: float) -> None:
    at_ms = agenda.now_ms() + round(seconds * 1000)
    agenda.at(at_ms, lambda: None, order=99)
    agenda.run(until=lambda: agenda.now_ms() >= at_ms, latest_ms=at_ms)


def _only(fleet: ModeledFleet) -> Container:
    (container,) = fleet.present.values()
    return container


def test_things_happen_in_the_order_of_time_then_of_being_put_down():
    agenda, seen = Agenda(), []
    agenda.after(2, lambda: seen.append("c"))
    agenda.after(1, lambda: seen.append("b"), order=1)
    agenda.after(1, lambda: seen.append("a"))
    agenda.after(-5, lambda: seen.append("now"))
    assert not agenda.run(until=lambda: False, latest_ms=agenda.now_ms() + 10_000)
    assert seen == ["now", "a", "b", "c"]
    assert agenda.elapsed_s() == 2


def test_instances_come_by_the_published_curve():
    shares = sorted(by_curve(number / 1000) for number in range(1001))
    assert shares[0] == 3 and shares[500] == 10 and shares[800] == 20 and shares[900] == 40 and shares[-1] == 80
    assert math.isinf(exponential_s(rng(0, "x", 1), math.inf))
    assert statistics.fmean(exponential_s(rng(0, "x", n), 100.0) for n in range(4000)) == pytest.approx(100, rel=0.05)


def test_simulated_fleet_bills_only_running_nodes_by_the_second():
    agenda, fleet, billed_time = _fleet()
    fleet.desired(1)
    _until(agenda, 59)
    assert fleet.running == 0
    _until(agenda, 101)
    assert fleet.running == 1
    fleet.desired(0)
    assert billed_time.billed_ms == 100_000
    assert billed_time.billed_micro_usd == pytest.approx(324_000 * 100 / 3600)


def test_a_spike_costs_more_while_it_lasts():
    agenda, fleet, billed_time = _fleet(spike=(100.0, 150.0, 4.0))
    fleet.desired(1)
    _until(agenda, 120)
    assert fleet.price().micro_usd_per_hour == 4 * 324_000
    _until(agenda, 100)
    fleet.desired(0)
    assert billed_time.billed_micro_usd == pytest.approx(324_000 * (160 + 3 * 50) / 3600)


def test_interrupted_instance_is_replaced_and_zombie_node_lives_on():
    agenda, fleet, _ = _fleet()
    fleet.desired(1)
    _until(agenda, 61)
    first = _only(fleet)
    fleet.interrupt(first, zombie=True)
    assert first.node.lived_on_s > 0  # type: ignore[union-attr]
    assert _only(fleet).machine.id != first.machine.id
    _until(agenda, 61)
    second = _only(fleet)
    fleet.interrupt(second, zombie=False)
    assert second.node.lived_on_s == 0  # type: ignore[union-attr]
    assert fleet.interruptions == 2


def test_a_reallocated_machine_stays_away_for_its_time_and_no_longer():
    agenda, fleet, _ = _fleet(pool=MachinePool(machines=2, in_order=2), excluded_s=3600.0)
    fleet.desired(1)
    _until(agenda, 61)
    first = _only(fleet)
    fleet.reallocate(first.id, reason="test")
    second = _only(fleet)
    assert second.machine.id != first.machine.id
    with pytest.raises(InstanceGone):
        fleet.reallocate(first.id, reason="again")
    fleet.desired(2)
    assert len(fleet.present) == 1  # the other one is kept from us
    _until(agenda, 3600)
    fleet.desired(2)
    assert {each.machine.id for each in fleet.present.values()} == {first.machine.id, second.machine.id}


def test_the_limits_of_the_provider_are_kept():
    agenda, fleet, _ = _fleet(requests_per_minute=5, reallocations_per_minute=1)
    fleet.desired(3)
    _until(agenda, 61)
    first, second, _third = list(fleet.present)
    fleet.reallocate(first, reason="test")
    with pytest.raises(FleetUnavailable, match="reallocations"):
        fleet.reallocate(second, reason="test")
    for _ in range(3):
        fleet.list()
    with pytest.raises(FleetUnavailable, match="429"):
        fleet.list()
    _until(agenda, 61)
    assert len(fleet.list()) == 3


def test_instances_named_as_leaving_end_first():
    agenda, fleet, _ = _fleet()
    fleet.desired(4)
    _until(agenda, 61)
    named = list(fleet.present)[2:]
    fleet.desired(2, leaving=named)
    assert not set(named) & set(fleet.present)


def test_an_attempt_that_brought_nothing_is_lost_with_what_came_before_it():
    billed_time = BilledTime()
    account = InstanceTimer(billed_time, at_ms=0)
    account.turn("model", at_ms=1000)
    account.turn(TRAIN, at_ms=3000)
    account.settle(useful_share=0.0, at_ms=10_000)
    assert (billed_time.idle_ms, billed_time.lost_ms, billed_time.useful_ms, billed_time.startup_ms) == (
        1000,
        9000,
        0,
        0,
    )
    account.turn("model", at_ms=10_000)
    account.turn(TRAIN, at_ms=12_000)
    account.turn(IDLE, at_ms=22_000)
    account.settle(useful_share=0.75, at_ms=23_000)
    account.close(at_ms=25_000)
    account.turn(TRAIN, at_ms=99_000)  # nobody pays for that
    assert (billed_time.idle_ms, billed_time.lost_ms, billed_time.useful_ms, billed_time.startup_ms) == (
        4000,
        11_500,
        7500,
        2000,
    )
    billed_time.billed_ms = 25_000
    assert billed_time.unaccounted_ms == 0


def test_machines_are_what_they_are_and_have_a_tail():
    pool = MachinePool(notable={3: {"slowness": 12.0}})
    assert pool.machine(7, 5) == pool.machine(7, 5) != pool.machine(8, 5)
    assert pool.machine(7, 3).slowness == 12.0 and not pool.machine(7, 3).sound
    slowness = sorted(pool.machine(0, number).slowness for number in range(2000) if number != 3)
    assert slowness[0] > pool.fastest
    assert statistics.median(slowness) == pytest.approx(1.0, abs=0.03)
    assert slowness[-1] > 1.5


def test_a_job_takes_what_its_parts_take():
    trainer = ANCESTOR_TRAINER
    assert trainer.whole_job_s(1400) / 60 == pytest.approx(53.7, abs=0.1)
    machine = MachinePool().machine(0, 1)
    assert trainer.fetch_s(machine, resumes=True) > trainer.fetch_s(machine, resumes=False)


def test_an_attempt_that_outlives_its_container_is_counted_once():
    world = Simulation(SCENARIOS["zombies"], seed=0, new_node=ModeledNode)
    (fleet,) = world.manual
    fleet.desired(1)
    (container,) = fleet.present.values()
    machine, start_ms = container.machine, world.agenda.now_ms()
    world.trace.jobs["job_1"] = JobTrace(id="job_1", project_id="p", steps=1000)
    grant = Grant(
        job_id="job_1",
        machine_id=container.machine.id,
        attempt_id="att_1",
        attempt=1,
        start_step=0,
        total_steps=1000,
        every=100,
        lease_s=90.0,
        mtbi_s=math.inf,
        max_at_risk_s=60.0,
        model="",
    )
    course = StepTimeline(SimulatedMachine(id="plain"), start_ms=start_ms, step_ms=1000, steps=1000)
    work = SimulatedAttempt(grant=grant, began_ms=start_ms, renewed_ms=start_ms, step_ms=1000, course=course)
    for at_s in (100.0, 150.0):
        world.agenda.at(start_ms + round(at_s * 1000), lambda: world.note_ended(work, machine))
    world.agenda.run(until=lambda: world.agenda.elapsed_s() >= 150.0, latest_ms=start_ms + 200_000)
    assert world.billed_time.attempt_ms == 150_000
    assert world.billed_time.steps == 150


def _course(machine: SimulatedMachine, *, steps: int = 4000, start_ms: int = 1_790_000_123_456) -> StepTimeline:
    return StepTimeline(machine, start_ms=start_ms, step_ms=2000.0, steps=steps)


NOISY = SimulatedMachine(id="noisy", seed=3, step_noise=STEP_NOISE, hour_noise=HOUR_NOISE)


def _seconds_of(course: StepTimeline, first: int, last: int) -> float:
    """For each step between two."""
    return (course.reaches_ms(last) - course.reaches_ms(first)) / 1000 / (last - first)


def test_step_time_is_constant_without_noise_and_heat():
    course = _course(SimulatedMachine(id="plain"))
    assert [course.reaches_ms(step) - course.reaches_ms(0) for step in (1, 1000, 4000)] == [
        2000,
        2_000_000,
        8_000_000,
    ]


@pytest.mark.parametrize("machine", [SimulatedMachine(id="plain"), NOISY], ids=lambda each: each.id)
def test_a_step_is_done_when_it_is_reached_and_not_before(machine: SimulatedMachine):
    course = _course(machine)
    for step in (1, 7, 999, 1000, 1001, 1799, 1800, 1801, 3999, 4000):
        at_ms = course.reaches_ms(step)
        assert (course.done_at(at_ms), course.done_at(at_ms - 1)) == (step, step - 1)


def test_steps_and_hours_differ_and_average_to_what_the_machine_is():
    course = _course(NOISY, steps=40_000)
    assert len({_seconds_of(course, step, step + 1) for step in range(50)}) > 40
    by_hour = [hour_factor(NOISY, hour) for hour in range(4000)]
    assert statistics.fmean(by_hour) == pytest.approx(1.0, abs=0.01)
    assert statistics.stdev(by_hour) == pytest.approx(HOUR_NOISE, rel=0.1)
    assert _seconds_of(course, 0, 40_000) == pytest.approx(2.0, rel=0.05)


def test_noise_is_a_function_and_no_state():
    late, early = _course(NOISY), _course(NOISY)
    assert late.reaches_ms(3000) == early.reaches_ms(3000)
    assert [hour_factor(NOISY, hour) for hour in (5, 4)] == [hour_factor(NOISY, hour) for hour in (4, 5)][::-1]
    other = _course(SimulatedMachine(id="other", seed=3, step_noise=STEP_NOISE, hour_noise=HOUR_NOISE))
    seed = _course(SimulatedMachine(id="noisy", seed=4, step_noise=STEP_NOISE, hour_noise=HOUR_NOISE))
    assert len({each.reaches_ms(3000) for each in (late, other, seed)}) == 3


def test_an_hour_that_is_slow_makes_all_of_its_steps_slow():
    machine = SimulatedMachine(id="hours", seed=0, hour_noise=0.3)
    start_ms = 500_000 * HOUR_MS
    course = _course(machine, start_ms=start_ms)
    for hour in (0, 1):
        first, last = (
            course.done_at(start_ms + at_ms) for at_ms in (hour * HOUR_MS + 1000, (hour + 1) * HOUR_MS - 1000)
        )
        expected_s = 2.0 * hour_factor(machine, 500_000 + hour)
        assert _seconds_of(course, first + 1, last) == pytest.approx(expected_s, rel=1e-4)


def test_heat_throttles_from_step_1000_on():
    course = _course(SimulatedMachine(id="hot", hot_by=3.0))
    assert _seconds_of(course, 0, 1000) == pytest.approx(2.0)
    assert _seconds_of(course, 1000, 1100) == pytest.approx(6.0)


def test_a_machine_that_gets_far_too_hot_is_not_sound():
    assert SimulatedMachine(id="warm", hot_by=1.2).sound
    assert not SimulatedMachine(id="hot", hot_by=2.0).sound
    pool = MachinePool(heats_up=0.3)
    heating = sum(pool.machine(0, number).hot_by > 1 for number in range(1000))
    assert heating == pytest.approx(300, rel=0.15)


def test_a_bound_is_what_the_fastest_machines_do_from_when_they_come():
    """Two machines that do a step in a second come after one and two minutes, at 0.36 dollars an hour."""
    offer = SimulatedOffer(
        price_micro_usd_per_hour=360_000,
        pool=MachinePool(
            machines=5, spread=0.0, throttled=0.0, notable={2: {"slowness": 0.1, "breaks": Reason.CRASHED}}
        ),
        start_min=((0.0, 1.0), (1.0, 3.0)),
    )
    trainer = dataclasses.replace(ANCESTOR_TRAINER, step_s=1.0)
    scenario = dataclasses.replace(
        SCENARIOS["region-loss"], offers=(offer,), trainer=trainer, jobs=10, steps=100, nodes=2
    )
    bound = bound_of(scenario, seed=0)
    assert bound.makespan_h * 3600 == pytest.approx(120 + (1000 - 60) / 2)
    assert bound.usd == pytest.approx(1000 * 0.0001)
    dear = dataclasses.replace(offer, spike=(0.0, 100.0, 4.0))
    cheap = dataclasses.replace(offer, spike=(0.0, 100.0, 0.25))
    assert bound_of(dataclasses.replace(scenario, offers=(dear,)), seed=0).usd == pytest.approx(bound.usd)
    assert bound_of(dataclasses.replace(scenario, offers=(dear, cheap)), seed=0).usd == pytest.approx(bound.usd / 4)


def test_evening_fault_interrupts_a_tenth_and_sold_out_provider_adds_no_instance():
    agenda, fleet, _ = _fleet()
    fleet.desired(30)
    place = SimpleNamespace(agenda=agenda, seed=0, fleets={"rented": fleet})
    for trouble in (
        PlannedFault(kind="evening", at_s=600.0, for_s=300.0, share=0.1),
        PlannedFault(kind="sold-out", at_s=600.0, for_s=3600.0),
    ):
        plan_fault(place, trouble)  # type: ignore[arg-type]
    _until(agenda, 599)
    assert (fleet.running, fleet.interruptions) == (30, 0)
    seen = []
    for _ in range(30):
        _until(agenda, 10)
        seen.append(fleet.interruptions)
    assert seen[-1] == 3 and len(set(seen)) > 2, "one after the other"
    _until(agenda, 3200)
    fleet.desired(30)
    assert len(fleet.present) == 27
    _until(agenda, 200)
    assert len(fleet.present) == 30, "the provider fills up what was asked for"
