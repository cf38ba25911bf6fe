"""What holds whenever nobody is in the middle of something, whatever happened before.

An `InvariantChecker` remembers the last quiet moment: some things may never change between two of them. It reads
and checks again what was written to since, and everything now and then, and then what it had not read again must be
as it was.
"""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Collection
from itertools import pairwise
from typing import Any

from tests.contract.model.audit_invariants import AuditWitness, check_beginnings, check_guilt, check_payers
from tests.contract.model.model_rig import NEVER_TRIED, ModelRig, Row, RowSnapshot, key_of, snapshot
from tests.contract.model.order_story import OrderStory
from tests.contract.model.picture_invariants import PictureWitness
from tests.contract.model.quota_checks import check_ceilings
from tests.contract.model.replay import ReplayedAttempt, ReplayedJob
from tests.contract.model.standing import check_standing
from tests.contract.model.sweep_invariants import SweepStory, check_sweeps

from giornata.domain.billing.money import cost_micro_usd
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.domain.jobs.job import TERMINAL
from giornata.domain.jobs.reasons import BAN, STRIKE, Reason
from giornata.domain.jobs.sweep import SWEEP_KIND
from giornata.domain.machines.machine_ids import proves_against
from giornata.protocol.specs import AUDIT_KIND

TOLD = tuple(one.name for one in dataclasses.fields(ReplayedAttempt) if one.name != "intervals")
REFERRERS = ("dataset_items", "job_inputs", "checkpoints", "artifacts", "caches", "audits")
WHOLE_EVERY = 25  # looks
LASTING = ("id", "project_id", "kind", "state", "committed_step", "attempt_count", "created_at_ms", "ended_at_ms")
DAY_MS = 86_400_000


class InvariantChecker:
    """Looks at the whole database again and again.

    `at_once`: others are at work between two looks, who may delete a job with the events that told of it.
    """

    def __init__(self, rig: ModelRig, *, at_once: bool = False) -> None:
        self._rig, self._at_once = rig, at_once
        self.last_event = 0
        self.replays: dict[str, ReplayedJob] = {}
        self.orders: dict[str, OrderStory] = {}
        self.sweeps: dict[str, SweepStory] = {}
        self.now = snapshot(rig, events_after=0, known={})
        self._terminal: dict[str, Row] = {}
        self._ended: dict[str, Row] = {}
        self._jobs: dict[str, Row] = {}
        self._attempts: dict[str, Row] = {}
        self._looks = 0
        self._pinned: set[str] = set()  # jobs, at the look before
        self._objects = -1
        self._pictures = PictureWitness(rig)
        self._audits = AuditWitness()

    @property
    def jobs(self) -> dict[str, Row]:
        """By id, as of the last look."""
        return self._jobs

    @property
    def attempts(self) -> dict[str, Row]:
        """By id, as of the last look."""
        return self._attempts

    def look(self, *, whole: bool = False) -> RowSnapshot:
        """Take it in. Raises AssertionError when something is not as it must be.

        `whole` reads all tables again, whether or not somebody was seen to write to them.
        """
        self._looks += 1
        whole = whole or self._looks % WHOLE_EVERY == 1
        written, objects = frozenset(self._rig.written.tables), self._rig.blobs.changes
        if not whole and not written and objects == self._objects:
            return self.now
        self._rig.written.forget()
        known = {} if whole else {name: rows for name, rows in self.now.tables.items() if name not in written}
        seen = snapshot(self._rig, events_after=self.last_event, known=known)
        if whole and self._looks > 1:
            self._check_untouched(seen, written)
        self._check(seen, None if whole else written)
        if whole or objects != self._objects or not written.isdisjoint({"blobs", *REFERRERS}):
            self._check_bytes(seen)
        self._objects, self.now = objects, seen
        return seen

    def unchanged(self) -> None:
        """Nothing was written since the last look."""
        if not self._rig.written.tables:
            return
        known = {name: rows for name, rows in self.now.tables.items() if name not in self._rig.written.tables}
        now = snapshot(self._rig, events_after=self.last_event, known=known)
        assert now.events == [], f"events of something that never happened: {now.events}"
        self._check_untouched(now, frozenset())

    def _check_untouched(self, seen: RowSnapshot, written: frozenset[str]) -> None:
        for name, rows in seen.tables.items():
            was = self.now.tables[name]
            assert name in written or rows == was, f"{name} was changed: {set(map(str, rows)) ^ set(map(str, was))}"
        assert seen.events == [] or "events" in written, f"unforeseen: {seen.events}"

    def _check(self, seen: RowSnapshot, written: frozenset[str] | None) -> None:
        """What depends on tables that were `written` to; None: on any."""

        def concerns(*tables: str) -> bool:
            return written is None or not written.isdisjoint(tables)

        self._jobs = {row.id: row for row in seen.jobs}
        self._attempts = {row.id: row for row in seen.attempts}
        tries = _by([row for row in seen.attempts if not row.pictures], "job_id")
        self._pinned = {row.id for row in self.now.jobs if row.pinned}
        if self._at_once:
            self._note_pins(seen)
        self._tell(seen)
        if concerns("jobs", "attempts", "events"):
            for job in seen.jobs:
                if job.kind not in NEVER_TRIED and job.deleted_at_ms is None:
                    self._check_job(job, tries[job.id])
            self._check_frozen(seen)
            self._check_sweeps(seen)
        if concerns("pictures", "picture_orders", "jobs", "attempts", "ledger", "events"):
            self._check_pictures(seen)
        if concerns("jobs", "job_inputs"):
            check_beginnings(seen)
        if concerns("jobs", "dataset_items"):
            self._check_needs(seen)
        if concerns("checkpoints", "artifacts", "events"):
            self._check_saved(seen)
            self._audits.check_retries(seen)
        if concerns("attempts", "ledger", "events"):
            self._check_money(seen)
            check_payers(seen)
        if concerns("attempts", "machines", "jobs"):
            check_standing(self.now, seen)
            check_ceilings(self._rig, self.now, seen)
        if concerns("attempts", "strikes", "bans", "audits"):
            self._check_judgments(seen, tries)

    # ---- events tell the whole replayed

    def _note_pins(self, seen: RowSnapshot) -> None:
        """Somebody has pinned checkpoints since the last look. They are there, and were there when that look was."""
        for row in seen.checkpoints:
            if row.pinned and row.job_id in self.replays:
                self.replays[row.job_id].pinned.add(row.step)

    def _untold(self, job_id: str) -> bool:
        """Whether events of this job may be gone that nobody has seen."""
        return self._at_once and self._jobs[job_id].deleted_at_ms is not None

    def _tell(self, seen: RowSnapshot) -> None:
        self._audits.take_back(seen, self.replays)
        for event in seen.events:
            job = self._jobs[event.job_id]
            if job.deleted_at_ms is not None:  # its events go in the call that deletes it, seen or not
                self.last_event = event.id
                continue
            if job.kind in ORDER_KINDS:
                self.orders.setdefault(job.id, OrderStory(job.id)).tell(event, self.orders)
                self.last_event = event.id
                continue
            if job.kind == SWEEP_KIND:
                self.sweeps.setdefault(job.id, SweepStory(job.id)).tell(event)
                self.last_event = event.id
                continue
            if event.job_id not in self.replays:
                spec = job.spec
                self.replays[event.job_id] = ReplayedJob(
                    event.job_id, json.loads(spec) if isinstance(spec, str) else spec
                )
                if job.kind == AUDIT_KIND:  # the server's own: no history tells of its beginning
                    self.replays[event.job_id].state = "queued"
            self.replays[event.job_id].tell(event, self.replays)
            self.last_event = event.id

    def _check_job(self, job: Row, tries: list[Row]) -> None:
        if job.kind == AUDIT_KIND and job.id not in self.replays:
            assert job.state in {"queued", "expired", "canceled"}, f"{job} has no history"
            return
        replayed = self.replays.get(job.id)
        assert replayed is not None, f"{job.id} has no history"
        key = None if replayed.alone else key_of(job.kind, replayed.spec.get("pretrained_model_name_or_path", ""))
        told = (
            replayed.state,
            replayed.committed_step,
            len(replayed.tries),
            replayed.retry_of,
            replayed.ended_at_ms,
            key,
        )
        is_ = (job.state, job.committed_step, job.attempt_count, job.retry_of, job.ended_at_ms, job.joint_key)
        assert told == is_, f"{job.id} is {is_}, but its events say {told}"
        assert job.step >= job.committed_step, f"{job.id} is at {job.step}, and {job.committed_step} is safe"
        said = [tuple(getattr(one, name) for name in TOLD) for one in replayed.tries.values()]
        rows = sorted(tries, key=lambda row: row.number)
        have = [tuple(getattr(row, name) for name in TOLD) for row in rows]
        assert have == said, f"attempts of {job.id}:\n{have}\nby its events:\n{said}"
        alive = [row for row in tries if row.ended_at_ms is None]
        holders = [row.id for row in alive if not row.lapsed]
        assert len(alive) <= (job.state not in {*TERMINAL, "paused"})
        assert (job.state == "paused") is (job.paused_by is not None), job
        crashes = _crashes_since_progress(rows)
        most = self._rig.ctx.policy.max_crashed_machines
        assert job.state in TERMINAL or crashes < most, f"{job.id} goes on after {crashes} crashes without progress"
        assert holders == ([job.attempt_id] if job.state == "running" else []), f"{job.id}: {job.state}, {holders}"

    def _check_sweeps(self, seen: RowSnapshot) -> None:
        for row in (row for row in seen.jobs if row.kind == SWEEP_KIND and row.deleted_at_ms is None):
            assert self.sweeps[row.id].state == row.state, f"{row}, but its events say {self.sweeps[row.id]}"
        check_sweeps(self.now, seen)

    def _check_pictures(self, seen: RowSnapshot) -> None:
        for order in seen.picture_orders:
            if self._jobs[order.order_id].deleted_at_ms is None:
                self.orders[order.order_id].check(self._jobs[order.order_id], order)
        self._pictures.check(seen)

    def _check_saved(self, seen: RowSnapshot) -> None:
        """The last one is never deleted, nor is N before N+1 is there: the fold prunes only at a commit."""
        have: dict[str, dict[int, Any]] = defaultdict(dict)
        for row in seen.checkpoints:
            have[row.job_id][row.step] = (row.sha256, row.attempt_number, bool(row.rejected), row.doubted_by)
            lost = (row.project_id, row.sha256) in self._rig.harmed
            doubted = row.job_id in self._audits.taken_back
            assert lost or doubted or not row.rejected, f"{row} was rejected for nothing"
        results: dict[str, dict[str, tuple[str, int]]] = defaultdict(dict)
        for row in seen.artifacts:
            results[row.job_id][row.name] = (row.sha256, self._attempts[row.attempt_id].number)
        for job_id, replayed in self.replays.items():
            if self._untold(job_id):
                continue
            self._forget_what_may_go(replayed, have[job_id], results[job_id])
            told = {step: (it.sha256, it.attempt, it.rejected, it.doubted_by) for step, it in replayed.saved.items()}
            assert have[job_id] == told, f"checkpoints of {job_id}: {have[job_id]}, by its events {told}"
            said = replayed.artifacts
            assert results[job_id] == said, f"results of {job_id}: {results[job_id]}, by its events {said}"

    def _forget_what_may_go(self, replayed: ReplayedJob, saved: Collection[int], results: Collection[str]) -> None:
        """A job that has ended may lose what its project keeps for a day, or all of it when it is deleted. One that
        has not ended, and what is pinned, loses nothing."""
        job = self._jobs[replayed.job_id]
        if job.state not in TERMINAL:
            return
        if job.deleted_at_ms is None:
            aged = job.ended_at_ms < self._rig.clock.now_ms() - DAY_MS
            pinned = job.id in self._pinned  # not since the last look only: retention may have come before
            if job.project_id not in self._rig.retained or pinned or not (aged or self._rig.is_set_back):
                return
        pinned = set() if job.deleted_at_ms is not None else replayed.pinned
        replayed.forgotten = max(replayed.forgotten, replayed.committed_step)
        for step in [step for step in replayed.saved if step not in saved and step not in pinned]:
            del replayed.saved[step]
        for name in [name for name in replayed.artifacts if name not in results]:
            del replayed.artifacts[name]

    def _check_needs(self, seen: RowSnapshot) -> None:
        """Whoever trains, or may, has its dataset."""
        there = {(row.project_id, row.dataset_id) for row in seen.dataset_items}
        for job in seen.jobs:
            if job.kind == "train" and job.state not in TERMINAL:
                spec = json.loads(job.spec) if isinstance(job.spec, str) else job.spec
                assert (job.project_id, spec["dataset"]) in there, f"the dataset of {job} is gone"

    # ---- what never changes again

    def _check_frozen(self, seen: RowSnapshot) -> None:
        for id_, row in self._terminal.items():
            now = self._jobs[id_]
            if now.deleted_at_ms is not None:
                assert [getattr(now, name) for name in LASTING] == [getattr(row, name) for name in LASTING], now
                continue
            doubt = row.suspect or id_ in self._audits.taken_back
            as_was = row._replace(pinned=now.pinned, suspect=doubt and now.suspect)
            assert now == as_was, f"a job that had ended was changed:\n{row}\n{now}"
        for id_, row in self._ended.items():
            attempt = self._attempts[id_]
            if self._jobs[row.job_id].deleted_at_ms is not None:  # what people wrote is gone
                row = row._replace(message=attempt.message, log_tail=attempt.log_tail)  # noqa: PLW2901
            assert attempt == row, f"an attempt that had ended was changed:\n{row}\n{attempt}"
        self._terminal = {row.id: row for row in seen.jobs if row.state in TERMINAL}
        self._ended = {row.id: row for row in seen.attempts if row.ended_at_ms is not None}

    # ---- money

    def _check_money(self, seen: RowSnapshot) -> None:
        bills = _by(seen.ledger, "attempt_id")
        assert set(bills) == set(self._attempts)
        for attempt in (row for row in seen.attempts if not row.pictures):
            self._check_bill(attempt, sorted(bills[attempt.id], key=lambda bill: bill.seq))

    def _check_bill(self, attempt: Row, bills: list[Row]) -> None:
        said = f"{attempt}\n{bills}"
        untold = self._untold(attempt.job_id)
        intervals = len(bills) if untold else self.replays[attempt.job_id].tries[attempt.number].intervals
        assert bills, said
        assert [bill.seq for bill in bills] == list(range(intervals)), said
        assert bills[0].from_ms == attempt.started_at_ms, said
        for bill in bills:
            price = attempt.price_micro_usd_per_hour
            cost = cost_micro_usd(price_micro_usd_per_hour=price, billed_ms=bill.to_ms - bill.from_ms)
            assert (bill.price_micro_usd_per_hour, bill.amount_micro_usd) == (price, cost), said
            assert bill.job_id == attempt.job_id
        # No moment is billed twice, and none after the node was last heard of, or fenced.
        for bill, following in pairwise(bills):
            assert bill.to_ms <= following.from_ms, said
        signs = {attempt.renewed_at_ms}
        if attempt.ended_at_ms is None and not attempt.lapsed:
            assert bills[-1].to_ms == attempt.renewed_at_ms, said
        elif not attempt.lapsed:
            signs.add(attempt.ended_at_ms)
            assert bills[-1].to_ms in signs, said
        assert bills[-1].to_ms <= max(signs), said

    # ---- blame

    def _check_judgments(self, seen: RowSnapshot, tries: dict[str, list[Row]]) -> None:
        reasons = {row.id: Reason(row.reason) for row in seen.attempts if row.reason is not None}
        struck = {row.attempt_id: row for row in seen.strikes}
        check_guilt(seen)
        for attempt_id, strike in struck.items():
            attempt = self._attempts[attempt_id]
            if strike.reason == Reason.AUDIT_MISMATCH:
                assert strike.machine_id == attempt.machine_id
                continue
            assert strike.reason == attempt.reason, f"{strike} is not for {attempt}"
            assert strike.machine_id == attempt.machine_id
            shared = bool(attempt.shared_fault)
            hindsight = attempt.reason == Reason.CRASHED and not shared and self._done_elsewhere(attempt, tries)
            assert STRIKE[reasons[attempt_id]] or hindsight, f"{strike} blames the innocent"
        own = {id_: reason for id_, reason in reasons.items() if not self._attempts[id_].shared_fault}
        missed = [id_ for id_, reason in own.items() if STRIKE[reason] and id_ not in struck]
        assert not missed, f"not held against their machines: {missed}"
        self._check_bans(seen, tries, own)

    def _done_elsewhere(self, attempt: Row, tries: dict[str, list[Row]]) -> bool:
        done = [row for row in tries[attempt.job_id] if row.reason == Reason.SUCCEEDED]
        return any(proves_against(row.machine_id, attempt.machine_id) for row in done)

    def _check_bans(self, seen: RowSnapshot, tries: dict[str, list[Row]], reasons: dict[str, Reason]) -> None:
        due = set[tuple[str, str]]()
        for job_id, rows in ((job_id, rows) for job_id, rows in tries.items() if rows and not self._untold(job_id)):
            lifted = self.replays[job_id].lifted
            banned: set[str] = set()
            for row in sorted(rows, key=lambda row: row.number):
                banned -= {machine_id for after, machine_id in lifted if after == row.number - 1}
                assert row.machine_id not in banned, f"{row} went to a machine that was banned from the job"
                if row.id in reasons and BAN[reasons[row.id]]:
                    banned.add(row.machine_id)
            banned -= {machine_id for after, machine_id in lifted if after == len(rows)}
            due |= {(job_id, machine_id) for machine_id in banned}
        assert {(row.job_id, row.machine_id) for row in seen.bans if not self._untold(row.job_id)} == due

    # ---- bytes

    def _check_bytes(self, seen: RowSnapshot) -> None:
        places = {(row.project_id, row.sha256): row for row in seen.blobs}
        harmed = self._rig.harmed
        for of, blob in places.items():
            assert blob.lost_at_ms is None or of in harmed, f"{blob} was never lost"
        for table in REFERRERS:
            for row in seen.tables[table]:
                if row.sha256 is None:  # an audit that keeps no bytes any more
                    continue
                blob = places.get((row.project_id, row.sha256))
                assert blob is not None, f"{table}: {row} names bytes that nobody knows"
                if (row.project_id, row.sha256) in harmed:
                    continue
                kept = self._rig.blobs.objects.get(blob.key)
                assert kept is not None, f"{table}: the bytes of {row} are gone"
                assert (kept.sha256, len(kept.data)) == (blob.sha256, blob.size_bytes), f"{blob} is not what it is"


def _crashes_since_progress(rows: list[Row]) -> int:
    """How many crashes of its own the job had since an attempt committed a step, those of that attempt included."""
    count = 0
    for row in rows:
        count = 0 if row.committed_step > row.start_step else count
        count += row.reason == Reason.CRASHED and not row.shared_fault
    return count


def _by(rows: list[Row], column: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[getattr(row, column)].append(row)
    return found
