"""Noise condemns no sound machine: the rule that ships, on many fleets of machines as the simulator draws them."""

import pytest

from giornata.domain.machines.stragglers import Member, StragglerPolicy, is_slow
from giornata.simulate.draws import rng
from giornata.simulate.rented.course import hour_factor
from giornata.simulate.rented.machines import MachinePool, SimulatedMachine
from giornata.simulate.scenarios import CALIBRATED_POOL

FLEETS = 300


def _condemned(pool: MachinePool, policy: StragglerPolicy, *, nodes: int) -> tuple[int, int]:
    """(sound machines that are called slow, unsound ones) in one hour of each of many fleets; two attempts each."""
    sound = unsound = 0
    for number in range(FLEETS):
        numbers = rng(number, "fleet", nodes).sample(range(18, pool.machines), nodes)
        fleet = [pool.machine(0, each) for each in numbers]
        cohort = [_member(machine, number) for machine in fleet for _ in range(2)]
        for machine in fleet:
            step_s = _member(machine, number).step_s
            if is_slow(step_s, machine_id=machine.id, cohort=cohort, policy=policy):
                sound, unsound = sound + machine.sound, unsound + (not machine.sound)
    return sound, unsound


def _member(machine: SimulatedMachine, hour: int) -> Member:
    return Member(machine_id=machine.id, step_s=machine.slowness * hour_factor(machine, hour), start_up_s=60.0)


@pytest.mark.parametrize("nodes", [5, 8, 20])
@pytest.mark.parametrize("pool", [CALIBRATED_POOL, MachinePool()], ids=["calibrated", "plain"])
def test_noise_condemns_no_sound_machine(pool: MachinePool, nodes: int):
    sound, unsound = _condemned(pool, StragglerPolicy(), nodes=nodes)
    assert sound == 0
    assert unsound > 0


def test_a_spread_of_a_tenth_would_condemn_some():
    """The control: what the rule did before."""
    sound, _ = _condemned(CALIBRATED_POOL, StragglerPolicy(least_mad=0.1), nodes=5)
    assert sound > 0
