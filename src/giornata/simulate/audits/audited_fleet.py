"""Play a fleet of machines that train, some of which lie, under the rules of replay audits that ship.

Time goes by stretches: each machine in service makes one after the other, and all are equally long. A machine that
the rules quarantine is out for good.
"""

from dataclasses import dataclass, field

from giornata.domain.jobs.audits import (
    AuditMachine,
    AuditParty,
    AuditPolicy,
    AuditResult,
    AuditStanding,
    agree,
    alone,
    draw_machine,
    is_audited,
    share_of,
)
from giornata.domain.jobs.reasons import Reason
from giornata.domain.machines.health import Failure, HealthPolicy, MachineHealth, MachineState, failed, newcomer
from giornata.domain.named_draws import drawn_share

TRUTH = "truth"
STRETCH_MS = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LiarSetting:
    """A fleet: `machines` in `owners` fleets, of which the share `liars` lies in the share `lies` of its stretches.

    With `agreeing` liars all liars are of one owner and tell the same lie; otherwise they are spread, and each tells
    a lie of its own. `stretches` are played.
    """

    machines: int = 120
    owners: int = 20
    liars: float = 0.05
    lies: float = 1.0
    agreeing: bool = False
    share: float = 0.01
    stretches: int = 1500


@dataclass(slots=True, kw_only=True)
class AuditedMachine:
    """A machine of the fleet. `out_after` is the number of stretches that it made before it was out."""

    place: AuditMachine
    liar: bool
    health: MachineHealth
    sound_audits: int = 0
    made: int = 0
    out_after: int | None = None


@dataclass(slots=True)
class AuditedFleet:
    """The fleet, and what its audits come to. `replays` counts stretches that were run again."""

    setting: LiarSetting
    seed: int
    replays: int = 0
    audits: int = 0
    undecided: int = 0
    machines: list[AuditedMachine] = field(default_factory=list)
    policy: AuditPolicy = field(init=False)
    health_policy: HealthPolicy = field(default_factory=HealthPolicy)

    def __post_init__(self) -> None:
        self.policy = AuditPolicy(share=self.setting.share)
        liars = round(self.setting.machines * self.setting.liars)
        self.machines = [self._machine(number, liar=number < liars) for number in range(self.setting.machines)]

    def play(self) -> None:
        """Play all stretches of all machines."""
        for step in range(1, self.setting.stretches + 1):
            for machine in self.machines:
                if machine.out_after is None:
                    self._make(machine, step)

    @property
    def made(self) -> int:
        """Stretches that were made, without those that were run again."""
        return sum(each.made for each in self.machines)

    def _machine(self, number: int, *, liar: bool) -> AuditedMachine:
        name = f"machine-{number:05d}"
        owner = 0 if liar and self.setting.agreeing else 1 + number % self.setting.owners
        place = AuditMachine(machine_id=name, fleet=f"fleet-{owner}")
        return AuditedMachine(
            place=place, liar=liar, health=newcomer(name, "train", policy=self.health_policy, at_ms=0)
        )

    def _make(self, machine: AuditedMachine, step: int) -> None:
        machine.made += 1
        standing = AuditStanding(
            machine_id=machine.place.machine_id,
            fleet=machine.place.fleet,
            sound_audits=machine.sound_audits,
            suspect=machine.health.state is not MachineState.OK,
        )
        job = machine.place.machine_id
        if is_audited(self.seed, job, step, share=share_of(standing, policy=self.policy)):
            self._audit(machine, job, step)

    def _audit(self, machine: AuditedMachine, job: str, step: int) -> None:
        """Let one machine repeat the stretch, and a third decide where the two differ."""
        self.audits += 1
        name = f"{job}@{step}"
        first = self._repeater(name, [machine])
        if first is None:
            return
        claimed, repeated = self._result(machine, name, step), self._result(first, name, step)
        if agree(claimed, repeated):
            machine.sound_audits += 1
            return
        second = self._repeater(name, [machine, first])
        party = None if second is None else alone(claimed, repeated, self._result(second, name, step))
        if party is None:
            self.undecided += 1
            return
        self._refute(machine if party is AuditParty.AUDITED else first, name, step)

    def _repeater(self, name: str, earlier: list[AuditedMachine]) -> AuditedMachine | None:
        """Return the machine that the rules draw."""
        places = {each.place: each for each in self.machines if each.out_after is None}
        drawn = draw_machine(
            self.seed,
            name,
            places.keys(),
            [each.place for each in earlier],
            contested=len(earlier) > 1,
            policy=self.policy,
        )
        if drawn is None:
            return None
        self.replays += 1
        return places[drawn]

    def _result(self, machine: AuditedMachine, name: str, step: int) -> AuditResult:
        who = machine.place.machine_id
        if not machine.liar or drawn_share(self.seed, "lie", who, step) >= self.setting.lies:
            return AuditResult(sha256=TRUTH)
        return AuditResult(sha256=f"lie about {name}" if self.setting.agreeing else f"lie of {who} about {name}")

    def _refute(self, machine: AuditedMachine, name: str, step: int) -> None:
        failure = Failure(
            attempt_id=f"{name} {machine.place.machine_id}",
            job_id=name,
            reason=Reason.AUDIT_MISMATCH,
            began_at_ms=step * STRETCH_MS,
            at_ms=step * STRETCH_MS,
            weight=self.health_policy.quarantine_strikes,
        )
        machine.health = failed(machine.health, failure, policy=self.health_policy)
        if machine.health.state is MachineState.QUARANTINED:
            machine.out_after = machine.made
