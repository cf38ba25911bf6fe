"""The scenarios by name. Sizes are those of the full run; `sized` makes a smaller one of the same kind."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from giornata.control.policy import Policy
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.domain.jobs.reasons import Reason
from giornata.simulate.rented.machines import MachinePool
from giornata.simulate.rented.provider import SimulatedOffer
from giornata.simulate.rented.trainer import ANCESTOR_TRAINER, OUR_TRAINER
from giornata.simulate.scenario import Goals, PlannedFault, Scenario

# Calibrated on what was published of the ancestor's 1000 jobs: see benchmarks/simulate/calibration.py.
CALIBRATED_POOL = MachinePool(
    fastest=0.827, spread=1.028, throttled=0.0875, throttled_by=1.556, notable={17: {"slowness": 14.2}}
)
CALIBRATED = SimulatedOffer(pool=CALIBRATED_POOL, mtbi_s=11.21 * 3600.0)
HOUR_S = 3600.0
# Assumed: a vendor says that nodes may leave at any time (docs.salad.com, priority pricing), not how many at once.
EVENING_S = 600.0


def _scaling(nodes: int) -> ScalingPolicy:
    return ScalingPolicy(max_nodes=nodes, max_scale_up=nodes, max_scale_down=nodes)


def _scenario(**fields: object) -> Scenario:
    defaults: dict[str, object] = {
        "jobs": 400,
        "nodes": 40,
        "steps": 600,
        "trainer": OUR_TRAINER,
        "offers": (SimulatedOffer(pool=MachinePool()),),
        "phases": 6,
        "latest_h": 24 * 7.0,
    }
    fields = {**defaults, **fields}
    fields.setdefault("scaling", _scaling(fields["nodes"]))  # type: ignore[arg-type]
    return Scenario(**fields)  # type: ignore[arg-type]


_ALL = (
    _scenario(
        name="ancestor-1000",
        about="the published benchmark: 1000 jobs of 1400 steps on 0 to 40 rented RTX 4090",
        jobs=1000,
        steps=1400,
        every=100,
        trainer=ANCESTOR_TRAINER,
        offers=(CALIBRATED,),
        phases=1,
        slowest_loop_s=30.0,
        latest_h=24 * 14.0,
        goals=Goals(lost_and_idle=0.02),
        notes=("the ancestor's trainer under both policies: what differs is policy",),
    ),
    _scenario(
        name="ancestor-1000-our-trainer",
        about="the same jobs and machines, with a trainer whose steps are faster by an estimated factor",
        jobs=1000,
        steps=1400,
        every=100,
        offers=(CALIBRATED,),
        phases=1,
        slowest_loop_s=30.0,
        latest_h=24 * 14.0,
        goals=Goals(lost_and_idle=0.02),
        notes=("the trainer's speed is an estimate, and no policy",),
    ),
    _scenario(
        name="black-hole",
        about="one machine fails every job within seconds",
        offers=(SimulatedOffer(pool=MachinePool(notable={0: {"breaks": Reason.NODE_DRIVER, "slowness": 1.0}})),),
        goals=Goals(most_attempts_on_broken=3),
    ),
    _scenario(
        name="stragglers",
        about="one machine in ten is 12 times as slow as the others",
        offers=(
            SimulatedOffer(
                pool=MachinePool(notable={number: {"slowness": 12.0} for number in range(0, 400, 10)}, in_order=400)
            ),
        ),
    ),
    _scenario(
        name="churn",
        about="every node is interrupted after 20 minutes on average",
        offers=(SimulatedOffer(mtbi_s=1200.0, pool=MachinePool(machines=4000)),),
        steps=1400,
        goals=Goals(lost_and_idle=0.08),
        policy=Policy(max_fruitless=30),
        latest_h=24 * 21.0,
    ),
    _scenario(
        name="outage",
        about="the server is away for an hour, and later the provider",
        phases=30,
        slowest_loop_s=1.0,
        troubles=(
            PlannedFault(kind="server-away", at_s=HOUR_S, for_s=HOUR_S),
            PlannedFault(kind="provider-away", at_s=2.5 * HOUR_S, for_s=HOUR_S),
        ),
        steps=1400,
        goals=Goals(peak_requests_per_node_s=0.5),
    ),
    _scenario(
        name="last-job",
        about="one node, one job, and the machine is banned for it",
        jobs=1,
        nodes=1,
        offers=(SimulatedOffer(pool=MachinePool(notable={0: {"breaks": Reason.CRASHED}})),),
        slowest_loop_s=1.0,
    ),
    _scenario(
        name="flood",
        about="100,000 jobs at once; one project has 90 of 100 of them",
        jobs=100_000,
        nodes=2000,
        steps=300,
        projects=4,
        weights=(90, 5, 3, 2),
        every=300,
        offers=(SimulatedOffer(pool=MachinePool(machines=8000), most_nodes=2000),),
        policy=Policy(lease_s=900.0),
        phases=1,
        slowest_loop_s=60.0,
        notes=("leases of 900 s, for so large a fleet",),
    ),
    _scenario(
        name="price-spike",
        about="for three hours the provider asks four times the price; a dearer one does not change his",
        offers=(
            SimulatedOffer(name="spot", price_micro_usd_per_hour=180_000, spike=(0.5 * HOUR_S, 3.5 * HOUR_S, 4.0)),
            SimulatedOffer(name="steady", machines="steady", price_micro_usd_per_hour=324_000),
        ),
    ),
    _scenario(
        name="zombies",
        about="interrupted nodes run on unseen, and come back to say so",
        offers=(SimulatedOffer(mtbi_s=2 * HOUR_S, zombies=1.0, zombie_s=1800.0, pool=MachinePool(machines=4000)),),
    ),
    _scenario(
        name="evenings",
        about="twice a tenth of a residential fleet leaves within minutes, once while no other machine is to be had",
        troubles=(
            PlannedFault(kind="evening", at_s=0.75 * HOUR_S, for_s=EVENING_S, share=0.1),
            PlannedFault(kind="sold-out", at_s=0.75 * HOUR_S, for_s=HOUR_S),
            PlannedFault(kind="evening", at_s=3 * HOUR_S, for_s=EVENING_S, share=0.1),
        ),
        steps=1400,
        notes=("how many leave, and how quickly, is assumed; that hosts go when they like is published",),
    ),
    _scenario(
        name="heat",
        about="one machine in ten throttles to a third of its speed from step 1,000 of a job on",
        offers=(
            SimulatedOffer(
                pool=MachinePool(notable={number: {"hot_by": 3.0} for number in range(1, 400, 10)}, in_order=400)
            ),
        ),
        steps=2400,
        notes=("three times is the median's outlier of 1.5 doubled: far enough to be worth a move",),
    ),
    _scenario(
        name="crash-loop",
        about="on one machine in ten a node's process ends again and again before it asks for work",
        offers=(
            SimulatedOffer(
                pool=MachinePool(notable={number: {"starts": False} for number in range(2, 400, 10)}, in_order=400)
            ),
        ),
        slowest_loop_s=3.0,
    ),
    _scenario(
        name="region-loss",
        about="half of the fleet is gone at once",
        troubles=(PlannedFault(kind="region-lost", at_s=1.5 * HOUR_S),),
        steps=1400,
    ),
)

SCENARIOS: Mapping[str, Scenario] = MappingProxyType({each.name: each for each in _ALL})


def sized(scenario: Scenario, *, jobs: int | None = None, nodes: int | None = None) -> Scenario:
    """The same with other numbers. Fewer jobs alone bring fewer nodes in the same proportion, at least two."""
    if jobs is not None and nodes is None and jobs < scenario.jobs:
        nodes = max(min(2, scenario.nodes), round(scenario.nodes * jobs / scenario.jobs))
    nodes = nodes or scenario.nodes
    scaling = dataclasses.replace(scenario.scaling, max_nodes=nodes, max_scale_up=nodes, max_scale_down=nodes)
    return dataclasses.replace(scenario, jobs=jobs or scenario.jobs, nodes=nodes, scaling=scaling)
