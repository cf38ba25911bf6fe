"""Hand out jobs. Everything about a claim happens in one transaction, or not at all.

Claims that came in while the database was at work are done in one transaction: its cost is shared.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from giornata.control.attempts.claiming.admit import (
    Admitted,
    HealthByKey,
    admit_each,
    canary_of,
    crowded_out,
    health_of_each,
)
from giornata.control.attempts.claiming.build_lease import build_lease
from giornata.control.attempts.claiming.claim_pictures import (
    Drawer,
    draw,
    draw_first,
    for_jobs,
    may_draw,
    nothing_reply,
    orders_of,
    same_pictures,
    something_waits,
)
from giornata.control.attempts.claiming.claim_refusals import (
    draining_reply,
    fail_begun,
    fail_unbegun,
    full_reply,
    unusable_reply,
)
from giornata.control.attempts.claiming.known_node import known_node, price_of, refusal_of, sighting
from giornata.control.attempts.ending.end_attempt import end_attempt
from giornata.control.attempts.renew_lease import renew_lease
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.pictures.lease import begin_orders, pictures_wanted
from giornata.control.pictures.node_models import is_noted, note_models, wanted_base, with_models, with_version
from giornata.control.ports.node_queries.picture_store import PicturesWanted
from giornata.control.ports.node_queries.work_rows import (
    AttemptRow,
    Before,
    Beginning,
    Earlier,
    JobRow,
    NewEvent,
    NodeRow,
    NodeSighting,
    Taking,
    Wanted,
)
from giornata.control.ports.store import Transaction
from giornata.control.quotas.ceilings import full_projects, running_rooms, take_within
from giornata.domain.errors import Conflict, Forbidden, InvalidInput
from giornata.domain.generation.picture import LEASE_KIND, ORDER_KINDS
from giornata.domain.jobs.attempt import most_leases
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.events import EventType
from giornata.protocol.node.work import Claim, ClaimReply, NodeInfo

# A node that waits may ask often; that it still waits is written down this often.
SEEN_EVERY_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A claim together with its caller. Raises as `known_node`.

    `node` is the node as the server knows it, `wanted` says which jobs it may have: none of the projects that are
    `passed_over`, because they run as many as they may.
    """

    caller: Caller
    claim: Claim
    passed_over: tuple[str, ...] = ()
    node: NodeInfo = field(init=False)
    wanted: Wanted = field(init=False)

    def __post_init__(self) -> None:
        node = known_node(self.caller, self.claim.node)
        wanted = Wanted(
            kinds=self.claim.kinds,
            held_models=self.claim.held_models,
            machine_id=node.machine_id,
            project_id=None if self.caller.serves_all_projects else self.caller.project_id,
            vram_bytes=self.claim.node.vram_bytes,
            joint_key=self.claim.joint_key,
            passed_over=self.passed_over,
        )
        object.__setattr__(self, "node", node)
        object.__setattr__(self, "wanted", wanted)

    @property
    def node_id(self) -> str:
        """The id of the node that asks."""
        return self.claim.node.node_id

    @property
    def draws(self) -> bool:
        """True for a claim of pictures."""
        return bool(self.claim.max_pictures) and not ORDER_KINDS.isdisjoint(self.claim.kinds)

    def pictures(self, ctx: Context, *, at_ms: int) -> PicturesWanted | None:
        """Return the conditions of the pictures that the node may have; None for a node that draws none."""
        if not self.draws:
            return None
        wanted = self.wanted
        machine_id, project_id = wanted.machine_id, wanted.project_id
        return pictures_wanted(ctx, self.claim, machine_id=machine_id, project_id=project_id, at_ms=at_ms)

    def waits_for_something(self, tx: Transaction, ctx: Context, *, at_ms: int) -> bool:
        """Return True when a job or a picture waits that the node could get."""
        return something_waits(tx, ctx, self.claim, self.wanted, self.pictures(ctx, at_ms=at_ms), at_ms=at_ms)

    def nothing(self, tx: Transaction, ctx: Context, *, at_ms: int, wanted: Wanted | None = None) -> ClaimReply:
        """Return the reply that there is nothing for the node, of all that it asked for or of what is `wanted`."""
        pictures = self.pictures(ctx, at_ms=at_ms)
        return nothing_reply(tx, ctx, self.claim, wanted or self.wanted, pictures, at_ms=at_ms)

    @property
    def sighting(self) -> NodeSighting:
        """The facts of that node that the store keeps."""
        claim = self.claim
        return sighting(self.caller, self.node, kinds=claim.kinds, held_models=claim.held_models)


def claim_once(ctx: Context, caller: Caller, claim: Claim) -> ClaimReply:
    """Return a lease, or why there is none: a look, and a claim if there is something. Raises Forbidden and
    Conflict.
    """
    asked = Asked(caller=caller, claim=claim)
    nothing = nothing_yet(ctx, asked)
    if nothing is not None:
        return nothing
    (reply,) = claim_each(ctx, [asked])
    if isinstance(reply, Conflict | Forbidden):
        raise reply
    return reply


def nothing_yet(ctx: Context, asked: Asked) -> ClaimReply | None:
    """Return the answer to a node that waits while nothing happens, found without writing anything; None: claim."""
    now_ms = ctx.clock.now_ms()
    with ctx.store.read() as tx:
        node = tx.nodes.get(asked.node_id)
        if (
            node is None
            or node.project_id != asked.caller.project_id
            or node.last_seen_at_ms + SEEN_EVERY_MS <= now_ms
            or not is_noted(ctx, asked.claim)
        ):
            return None
        request = (node.id, asked.claim.request_id)
        before = tx.attempts.before_each([request]).get(request)
        known = _known(asked, node, before)
        if known is not None:
            return None if isinstance(known, Earlier) else known
        if passed_over := full_projects(running_rooms(tx, ctx, at_ms=now_ms)):
            asked = replace(asked, passed_over=passed_over)
        if not asked.waits_for_something(tx, ctx, at_ms=now_ms):
            has_hint = wanted_base(ctx, asked.claim, asked.wanted.project_id, at_ms=now_ms) is not None
            nothing = None if has_hint else asked.nothing(tx, ctx, at_ms=now_ms)
        else:
            nothing = _refusal(tx, ctx, asked, at_ms=now_ms)
    return None if nothing is None else with_version(ctx, asked.claim, nothing)


def _refusal(tx: Transaction, ctx: Context, asked: Asked, *, at_ms: int) -> ClaimReply | None:
    """Return why the machine may begin nothing now; None when it may."""
    known = health_of_each(tx, ctx, [asked.wanted], at_ms=at_ms, hold=False)
    (admitted,) = admit_each(tx, ctx, [asked.wanted], known, at_ms=at_ms)
    return None if admitted.wanted is not None or admitted.on_trial else admitted.refusal


def claim_each(ctx: Context, asked: Sequence[Asked]) -> list[ClaimReply | Conflict | Forbidden]:
    """Return for each claim a lease, or why there is none. No two of one node. Notes that the nodes were seen.

    Repeating a `request_id` whose attempt lives gives the same lease with the same token; repeating one whose
    attempt has ended gives nothing. The answer is Conflict when the node's id belongs to another project, and
    Forbidden for another owner's machine or fleet, or a price above what the key allows.
    """
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        nodes = tx.nodes.see_each([each.sighting for each in asked], at_ms=now_ms)
        # Of two equal claims at once the second stood waiting for the node's row: only now is the answer sure.
        before = tx.attempts.before_each([(each.node_id, each.claim.request_id) for each in asked])
        known = [
            refusal_of(tx, ctx, each.caller, each.claim.node, nodes[each.node_id], at_ms=now_ms)
            or _known(each, nodes[each.node_id], before.get((each.node_id, each.claim.request_id)))
            for each in asked
        ]
        new = [each for each, answer in zip(asked, known, strict=True) if answer is None]
        for each in new:
            if each.draws:
                note_models(tx, ctx, each.claim, each.wanted.project_id, at_ms=now_ms)
        taken = iter(_take_each(tx, ctx, new, nodes, at_ms=now_ms) if new else ())
        answers = [answer or next(taken) for answer in known]
    told = {each.node_id for each in new if each.draws}
    answers = [
        with_models(ctx, each.claim, answer, each.wanted.project_id, at_ms=now_ms)
        if each.node_id in told and isinstance(answer, ClaimReply)
        else answer
        for each, answer in zip(asked, answers, strict=True)
    ]
    # In transactions that do not hold a node's row: heartbeats lock the job before the node.
    begin_orders(ctx, orders_of(answers))
    return [_again(ctx, answer, at_ms=now_ms) if isinstance(answer, Earlier) else answer for answer in answers]


def _known(asked: Asked, node: NodeRow, before: Before | None) -> ClaimReply | Earlier | None:
    """Return the answer, or the attempt that this claim made before, when neither takes a look at the queue."""
    if before is not None and before.earlier is not None:
        return before.earlier
    if node.draining:
        return draining_reply()
    places = asked.node.places
    return full_reply(places) if before is not None and before.leases >= most_leases(places) else None


def _take_each(
    tx: Transaction, ctx: Context, asked: Sequence[Asked], nodes: Mapping[str, NodeRow], *, at_ms: int
) -> list[ClaimReply]:
    """Return for each claim a lease, or why there is none. A second round is rare; see `_take_round`."""
    rooms = dict(running_rooms(tx, ctx, at_ms=at_ms))
    health = health_of_each(tx, ctx, [each.wanted for each in asked], at_ms=at_ms, hold=True)
    replies: list[ClaimReply | None] = [None] * len(asked)
    while left := [number for number, reply in enumerate(replies) if reply is None]:
        within = [replace(asked[number], passed_over=full_projects(rooms)) for number in left] if rooms else None
        round_of = within or [asked[number] for number in left]
        found = _take_round(tx, ctx, round_of, nodes, health, rooms=rooms, at_ms=at_ms)
        for number, reply in zip(left, found, strict=True):
            replies[number] = reply
    return [reply for reply in replies if reply is not None]


def _take_round(
    tx: Transaction,
    ctx: Context,
    asked: Sequence[Asked],
    nodes: Mapping[str, NodeRow],
    health: HealthByKey,
    *,
    rooms: dict[str, int],
    at_ms: int,
) -> list[ClaimReply | None]:
    """Answer the claims once; None for a claim to try again.

    Such a claim's machine was refused a kind because an earlier claim of the batch might begin that kind, and the
    earlier claim did not. The first claim always gets a reply.
    """
    admitted = admit_each(tx, ctx, [each.wanted for each in asked], health, at_ms=at_ms)
    replies = [each.refusal for each in admitted]
    begun: list[Beginning] = []
    handed_out: dict[int, JobRow] = {}
    drawers = _drawers(ctx, asked, admitted, nodes, at_ms=at_ms)
    drawn = draw_first(tx, ctx, drawers, at_ms=at_ms)
    taken = _taken(tx, ctx, admitted, health, rooms=rooms, but=drawn.keys(), at_ms=at_ms)
    got_a_job = {number for number, (_, job) in taken.items() if job is not None}
    drawn |= draw(
        tx, ctx, {number: drawers[number] for number in drawers.keys() - drawn.keys() - got_a_job}, at_ms=at_ms
    )
    for number, granted in enumerate(admitted):
        if granted.wanted is not None and number not in taken:
            replies[number] = drawn.get(number) or asked[number].nothing(tx, ctx, at_ms=at_ms)
    for number, (taking, job) in taken.items():
        each = asked[number]
        if job is None:
            nothing = replies[number] or drawn.get(number)
            replies[number] = nothing or each.nothing(tx, ctx, at_ms=at_ms, wanted=taking.wanted)
            continue
        _end_silent(tx, job, each.node, at_ms=at_ms)
        price = price_of(ctx, each.node, nodes[each.node_id])
        attempt = _attempt(ctx, job, each.node, taking.attempt_id, price=price, at_ms=at_ms)
        try:
            replies[number] = ClaimReply(lease=build_lease(tx, ctx, job, attempt, at_ms=at_ms))
        except InvalidInput as unusable:
            fail_unbegun(tx, job, unusable.faults, at_ms=at_ms)
            replies[number] = unusable_reply(job)
            continue
        request_id, event = each.claim.request_id, _started(job, attempt)
        begun.append(Beginning(attempt=attempt, request_id=request_id, event=event, billed_to=job.billed_to))
        handed_out[number] = job
    # Their nodes' rows are held: nothing else begins there now.
    tx.attempts.begin_each(begun)
    ctx.durations.claimed(handed_out.values(), at_ms=at_ms)
    begun_kinds = {number: job.kind for number, job in handed_out.items()} | dict.fromkeys(drawn, LEASE_KIND)
    again = crowded_out(admitted, begun_kinds) - got_a_job - drawn.keys()
    return [
        None
        if number in again or reply is None
        else _told(tx, ctx, asked[number], admitted[number], reply, at_ms=at_ms)
        for number, reply in enumerate(replies)
    ]


def _drawers(
    ctx: Context, asked: Sequence[Asked], admitted: Sequence[Admitted], nodes: Mapping[str, NodeRow], *, at_ms: int
) -> dict[int, Drawer]:
    """Return the claims of nodes that may draw now, by number."""
    found = {}
    for number, (each, granted) in enumerate(zip(asked, admitted, strict=True)):
        wanted = each.pictures(ctx, at_ms=at_ms)
        if wanted is not None and may_draw(granted):
            price = price_of(ctx, each.node, nodes[each.node_id])
            found[number] = Drawer(claim=each.claim, node=each.node, wanted=wanted, admitted=granted, price=price)
    return found


def _told(
    tx: Transaction, ctx: Context, asked: Asked, admitted: Admitted, reply: ClaimReply, *, at_ms: int
) -> ClaimReply:
    """Answer a refused claim as empty when no job waits for the node anyway.

    `nothing_yet` says the same, before it comes to the machine's health.
    """
    if reply is not admitted.refusal or asked.waits_for_something(tx, ctx, at_ms=at_ms):
        return reply
    return asked.nothing(tx, ctx, at_ms=at_ms)


def _taken(
    tx: Transaction,
    ctx: Context,
    admitted: Sequence[Admitted],
    health: HealthByKey,
    *,
    rooms: dict[str, int],
    but: Collection[int],
    at_ms: int,
) -> Mapping[int, tuple[Taking, JobRow | None]]:
    """Take jobs for all claims `but` these; return by the number of the claim what it asked for, and what it got. A
    canary goes before everything else.
    """
    taken: dict[int, tuple[Taking, JobRow | None]] = {}
    for number, each in enumerate(admitted):
        if each.on_trial:
            wanted = canary_of(tx, ctx, each, health, at_ms=at_ms)
            taking = Taking(wanted=wanted, attempt_id=ctx.names.new("att"))
            taken[number] = taking, tx.jobs.take(taking, at_ms=at_ms)
    rest = {
        number: Taking(wanted=for_a_job, attempt_id=ctx.names.new("att"))
        for number, each in enumerate(admitted)
        if each.wanted is not None
        and (for_a_job := for_jobs(each.wanted)) is not None
        and number not in but
        and (number not in taken or taken[number][1] is None)
    }
    jobs = take_within(tx, ctx, list(rest.values()), rooms, at_ms=at_ms) if rest else []
    return taken | {number: (rest[number], job) for number, job in zip(rest, jobs, strict=True)}


def _attempt(ctx: Context, job: JobRow, node: NodeInfo, attempt_id: str, *, price: int, at_ms: int) -> AttemptRow:
    return AttemptRow.begun(
        attempt_id,
        node,
        job_id=job.id,
        number=job.attempt_count,
        step=job.committed_step,
        price_micro_usd_per_hour=price,
        lease_s=ctx.policy.lease_s,
        at_ms=at_ms,
    )


def _started(job: JobRow, attempt: AttemptRow) -> NewEvent:
    return NewEvent(
        job_id=job.id,
        project_id=job.project_id,
        type=EventType.ATTEMPT_STARTED,
        attempt_number=attempt.number,
        data={
            "node_id": attempt.node_id,
            "machine_id": attempt.machine_id,
            "node_name": attempt.node_name,
            "resume_step": attempt.start_step,
        },
        at_ms=attempt.started_at_ms,
    )


def _end_silent(tx: Transaction, job: JobRow, node: NodeInfo, *, at_ms: int) -> None:
    """End an attempt whose lease ran out: another node has the job now."""
    silent = tx.attempts.live_of_job(job.id) if job.attempt_count > 1 else None
    if silent is None:
        return
    same = (silent.machine_id, silent.node_name) == (node.machine_id, node.name)
    reason = Reason.SUPERSEDED if same else Reason.LEASE_EXPIRED
    message = "its node asked for work again" if same else "its node fell silent, and another took the job"
    end_attempt(tx, job, silent, reason=reason, at_ms=at_ms, alive=False, message=message)


def _again(ctx: Context, earlier: Earlier, *, at_ms: int) -> ClaimReply:
    """Answer a claim whose reply got lost, or that was sent twice."""
    with ctx.store.begin() as tx:
        job = tx.jobs.lock(earlier.job_id)
        attempt = tx.attempts.get(earlier.attempt_id)
        if job is None or attempt is None or attempt.ended_at_ms is not None:
            return ClaimReply(
                reason="claim-repeated-after-end",
                detail="the attempt that this request id began has ended; claim with a new request id",
            )
        if attempt.pictures:
            renew_lease(tx, ctx, job, attempt, at_ms=at_ms)
            return same_pictures(tx, ctx, attempt)
        try:
            lease = build_lease(tx, ctx, job, attempt, at_ms=at_ms)
        except InvalidInput as unusable:
            fail_begun(tx, job, attempt, unusable.faults, at_ms=at_ms)
            return unusable_reply(job)
        # The node counts its lease from this request, so the server must not count from an earlier one.
        renew_lease(tx, ctx, job, attempt, at_ms=at_ms)
        return ClaimReply(lease=lease)
