"""The gate before the queue: it decides which kinds of job the machine of a claim may begin now.

Asked in the claim's transaction, while the node's row is held. Rows of machines that are limited are held too, so
that two nodes of one machine do not take the last of its quota both. Of the others nothing but their rows is read,
all of a batch of claims in one statement.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from giornata.control.context import Context
from giornata.control.ports.node_queries.machine_store import MachineKey
from giornata.control.ports.node_queries.work_rows import Wanted
from giornata.control.ports.store import Transaction
from giornata.domain.generation.picture import ORDER_KINDS, offered_kind
from giornata.domain.jobs.admission import Admission, Answer, admit, unlimited
from giornata.domain.machines.health import MS_PER_HOUR, MachineHealth, newcomer
from giornata.domain.machines.machine_ids import owner_of
from giornata.protocol.events import EventType
from giornata.protocol.node.work import ClaimReply
from giornata.protocol.project.admin import ROOT_PROJECT
from giornata.protocol.specs import CANARY_KIND, CanarySpec

HealthByKey = dict[MachineKey, MachineHealth]

CANARY_WAITS_MS = MS_PER_HOUR  # for a machine that does not come back for it

_HEALTH_KIND: Mapping[str, str] = MappingProxyType({kind: offered_kind(kind) for kind in ORDER_KINDS})
"""Machines that draw and that annotate are judged under one kind. A lookup is no call; claims are hot."""
_GRANTED = frozenset({Answer.YES, Answer.CANARY})
_WORDS: Mapping[Answer, str] = {
    Answer.QUARANTINED: "this machine is quarantined",
    Answer.QUOTA: "this machine has failed lately",
    Answer.PROBATION: "this machine is on probation",
    Answer.CANARY: "this machine is on probation, and its canary is under way",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The admission of one claim: `wanted` has the kinds that the node may begin; if None, `refusal` explains it.

    With `on_trial` a canary has to come first: these are the rows that wait for it. `crowded` are rows whose kind was
    refused because earlier claims of the batch may begin that kind.
    """

    wanted: Wanted | None
    refusal: ClaimReply | None = None
    on_trial: tuple[MachineKey, ...] = ()
    crowded: frozenset[MachineKey] = frozenset()


def health_of_each(tx: Transaction, ctx: Context, asked: Sequence[Wanted], *, at_ms: int, hold: bool) -> HealthByKey:
    """Read the health of the machines and kinds of these claims. `hold` the rows of limited machines if anything is
    to be begun.

    Of what a claim does, only `canary_of` changes these rows.
    """
    policy = ctx.policy.health
    keys = {
        (wanted.machine_id, _HEALTH_KIND.get(kind, kind))
        for wanted in asked
        for kind in wanted.kinds
        if kind != CANARY_KIND
    }
    known = dict(tx.machines.get_each([key[0] for key in keys], [key[1] for key in keys])) if keys else {}
    limited = sorted(key for key in keys if not unlimited(known.get(key), policy=policy))
    for key in limited:
        if key not in known:
            known[key] = newcomer(*key, policy=policy, at_ms=at_ms)
            if hold:
                tx.machines.make_sure(known[key])
    return {**known, **tx.machines.lock_each(limited)} if hold and limited else known


def admit_each(
    tx: Transaction, ctx: Context, asked: Sequence[Wanted], known: Mapping[MachineKey, MachineHealth], *, at_ms: int
) -> list[Admitted]:
    """Admit each of the claims in order; `known` is what `health_of_each` found."""
    begun: Counter[MachineKey] = Counter()  # by those who asked before in this very batch
    return [_admit(tx, ctx, each, known, begun, at_ms=at_ms) for each in asked]


def crowded_out(admitted: Sequence[Admitted], begun_kinds: Mapping[int, str]) -> set[int]:
    """Return the numbers of claims that were refused a kind because of a claim that has not begun that kind.

    `begun_kinds` says by the number of the claim what it has begun.
    """
    if not any(each.crowded for each in admitted):
        return set()
    unused = {
        (each.wanted.machine_id, _HEALTH_KIND.get(kind, kind))
        for number, each in enumerate(admitted)
        if each.wanted is not None
        for kind in each.wanted.kinds
        if _HEALTH_KIND.get(kind, kind) != begun_kinds.get(number)
    }
    return {number for number, each in enumerate(admitted) if each.crowded & unused}


def canary_of(tx: Transaction, ctx: Context, admitted: Admitted, known: HealthByKey, *, at_ms: int) -> Wanted:
    """Return the claim that gives the machine its canary, which is made if there is none.

    The rows must be held. They are changed in `known` as well: another claim of the batch may be for this machine.
    """
    waiting = {known[key].canary_job_id for key in admitted.on_trial}
    live = sorted(job_id for job_id in waiting if job_id is not None and tx.machines.is_live(job_id))
    machine_id, _ = admitted.on_trial[0]
    job_id = live[0] if live else _make_canary(tx, ctx, machine_id, at_ms=at_ms)
    for key in admitted.on_trial:
        if known[key].canary_job_id != job_id:
            known[key] = replace(known[key], canary_job_id=job_id)
            tx.machines.put(known[key])
    return Wanted(kinds=(CANARY_KIND,), held_models=(), machine_id=machine_id, project_id=None)


def _admit(
    tx: Transaction,
    ctx: Context,
    wanted: Wanted,
    known: Mapping[MachineKey, MachineHealth],
    begun: Counter[MachineKey],
    *,
    at_ms: int,
) -> Admitted:
    machine_id = wanted.machine_id
    answers = {
        kind: _answer(tx, ctx, wanted, known, begun, key=(machine_id, _HEALTH_KIND.get(kind, kind)), at_ms=at_ms)
        for kind in wanted.kinds
        if kind != CANARY_KIND
    }
    kinds = tuple([kind for kind, said in answers.items() if said.answer is Answer.YES])
    trial: tuple[MachineKey, ...] = ()
    crowded: frozenset[MachineKey] = frozenset()
    if len(kinds) < len(answers):
        said_of = {(machine_id, _HEALTH_KIND.get(kind, kind)): said.answer for kind, said in answers.items()}
        trial = tuple(key for key, answer in said_of.items() if answer is Answer.CANARY)
        crowded = frozenset(key for key, answer in said_of.items() if answer not in _GRANTED and begun[key])
    for key in {(machine_id, _HEALTH_KIND.get(kind, kind)) for kind in kinds}:
        begun[key] += 1
    if not kinds:
        refusal = _refusal(list(answers.values()), at_ms=at_ms)
        return Admitted(wanted=None, refusal=refusal, on_trial=trial, crowded=crowded)
    return Admitted(wanted=replace(wanted, kinds=kinds), on_trial=trial, crowded=crowded)


def _answer(
    tx: Transaction,
    ctx: Context,
    wanted: Wanted,
    known: Mapping[MachineKey, MachineHealth],
    begun: Counter[MachineKey],
    *,
    key: MachineKey,
    at_ms: int,
) -> Admission:
    policy, health = ctx.policy.health, known.get(key)
    if health is None or unlimited(health, policy=policy):
        return Admission(answer=Answer.YES)
    engaged = tx.machines.engagement(*key, since_ms=at_ms - MS_PER_HOUR)
    just_now = begun[key]
    return admit(
        health,
        live=engaged.live + just_now,
        at_stake_ms=[*engaged.at_stake_ms, *[at_ms] * just_now],
        # A node that looks for a companion is at work: that is no moment for a trial.
        offers_canary=CANARY_KIND in wanted.kinds and wanted.joint_key is None,
        policy=policy,
        at_ms=at_ms,
    )


def _refusal(answers: Sequence[Admission], *, at_ms: int) -> ClaimReply:
    if not answers:
        return ClaimReply(reason="no-such-kind", detail="this node takes no kind of job but the platform's own")
    said = answers[0]
    # A wait with a known end is told before one without.
    again_ms = min((each.again_at_ms for each in answers if each.again_at_ms is not None), default=None)
    when = "" if again_ms is None else f"; more in {max(1, -(-(again_ms - at_ms) // 1000))} s"
    reason = said.answer if said.answer is not Answer.CANARY else Answer.PROBATION
    return ClaimReply(reason=reason.value, detail=f"{_WORDS[said.answer]} ({said.detail}){when}")


def _make_canary(tx: Transaction, ctx: Context, machine_id: str, *, at_ms: int) -> str:
    job_id = ctx.names.new("job")
    spec = CanarySpec().model_dump(mode="json")
    project_id = owner_of(machine_id) or ROOT_PROJECT  # who owns the machine pays for its canary
    tx.machines.insert_canary(
        job_id,
        project_id=project_id,
        machine_id=machine_id,
        spec=spec,
        at_ms=at_ms,
        deadline_at_ms=at_ms + CANARY_WAITS_MS,
    )
    data = {"kind": CANARY_KIND, "retry_of": None}
    tx.events.add(job_id, project_id, EventType.JOB_SUBMITTED, None, data, at_ms)
    return job_id
