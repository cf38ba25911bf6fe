"""What can happen to the house besides what nodes with a lease send: claims, users, loops, time, and death."""

from collections.abc import Collection
from contextlib import suppress
from typing import Any

from tests.contract.model.calls import DIED, Held, Submitted
from tests.contract.model.deeds import NodeDeeds, named
from tests.contract.model.house import PLACES, PROJECTS, Place, Row, owner
from tests.contract.model.standing import Standing

from giornata.control.cancel import cancel
from giornata.control.claim import claim_once
from giornata.control.collect import collect
from giornata.control.complete_upload import complete_upload
from giornata.control.continue_training import continue_training
from giornata.control.expire import expire_deadlines
from giornata.control.lapse import CLOCKS_AGREE_MS, lapse_leases
from giornata.control.read_jobs import get_job
from giornata.control.reap import reap
from giornata.control.request_uploads import request_uploads
from giornata.control.retry import RETRYABLE, retry
from giornata.control.submit import submit
from giornata.domain.errors import GiornataError, InvalidInput, KeyInFlight, NotFound, OverBudget
from giornata.domain.job import TERMINAL, JobState
from giornata.domain.routing import Candidate, rank
from giornata.protocol.admin import ROOT_PROJECT
from giornata.protocol.jobs import ContinueJob, SubmitJob
from giornata.protocol.uploads import CompleteUpload, FileToUpload, UploadRequest
from giornata.protocol.work import Claim
from giornata.store import schema

MODELS = ("some/model", "another/model")
KEYS = tuple(f"{model}|||" for model in MODELS)  # as nodes name what they hold
HOUR_S, DAY_S = 3600, 86_400

# What has to happen more often for the rest to be interesting weighs more.
WEIGHTS = {
    "submit": 6,
    "submit_again": 2,
    "claim": 14,
    "claim_again": 4,
    "claim_together": 3,
    "claim_companion": 8,
    "replace_process": 1,
    "beat": 10,
    "beat_together": 3,
    "metrics": 1,
    "log": 1,
    "notice": 1,
    "commit": 14,
    "commit_late": 2,
    "upload": 1,
    "put_late": 2,
    "reject": 4,
    "lose": 2,
    "lose_and_send_again": 2,
    "artifact": 4,
    "cache": 1,
    "complete": 4,
    "fail": 4,
    "crash": 3,
    "crash_together": 4,
    "release": 3,
    "again": 5,
    "cancel": 2,
    "retry": 3,
    "budget": 3,
    "project_budget": 1,
    "settle": 2,
    "continue_one": 2,
    "look_at": 1,
    "send_pictures": 1,
    "lapse": 6,
    "reap": 3,
    "expire": 3,
    "collect": 2,
    "short_wait": 5,
    "long_wait": 5,
    "very_long_wait": 1,
    "clock_back": 2,
    "mute": 1,
    "die": 8,
}
DEEDS = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
Step = tuple[str, int, int]


class Deeds(NodeDeeds):
    """What happens one at a time."""

    def do(self, step: Step) -> None:
        name, a, b = step
        with self.town.guard:
            self.town.deeds[name] += 1
        getattr(self, name)(a, b)
        if self.exact:
            self.witness.look()

    # ---- claims

    def claim(self, a: int, b: int) -> None:
        """One of the claims' replies in eight is lost."""
        place = PLACES[a % len(PLACES)]
        incarnation = self.town.incarnations.get(place.number, 0)
        request_id = f"request-{next(self.town.numbers):07d}"
        self.town.requests.append((place, incarnation, request_id, None))
        self._ask(place, incarnation, request_id, held_models=KEYS[: b % 2], lost=b % 8 == 0, again=b % 3 == 0)

    def claim_again(self, a: int, b: int) -> None:
        """The same request, maybe long after."""
        if self.town.requests:
            place, incarnation, request_id, key = self.town.requests[-1 - a % min(len(self.town.requests), 1 + b)]
            self._ask(place, incarnation, request_id, joint_key=key, lost=False, again=False)

    def replace_process(self, a: int, b: int) -> None:
        """What the old one holds lapses, or is taken over by the new one."""
        number = a % len(PLACES)
        self.town.incarnations[number] = self.town.incarnations.get(number, 0) + 1

    def _ask(
        self,
        place: Place,
        incarnation: int,
        request_id: str,
        *,
        held_models: tuple[str, ...] = (),
        joint_key: str | None = None,
        lost: bool,
        again: bool,
    ) -> None:
        if self.muted(place):
            return
        node = place.process(incarnation)
        claim = Claim(
            request_id=request_id, node=node, kinds=place.kinds, held_models=held_models, joint_key=joint_key
        )
        earlier = self._of_request(node.node_id, request_id)
        due = self._first_of_queue(place, held_models, joint_key)
        reply = self.call(lambda: claim_once(self.ctx, place.caller, claim), again=again)
        if reply is DIED:
            return
        if self.exact and earlier is None:
            assert (reply.lease and reply.lease.job_id) == (due and due.id), f"{reply}, due was {due}"
        elif self.exact:
            alive = earlier.id if earlier.ended_at_ms is None else None
            assert (reply.lease and reply.lease.attempt_id) == alive, f"{reply} to a repeat of {earlier}"
        if reply.lease is not None and not lost:
            self._told(place, reply.lease)

    def _told(self, place: Place, lease: Any) -> None:
        assert self.town.tokens.setdefault(lease.attempt_id, lease.token) == lease.token
        for download in [it.download for it in (*lease.inputs, *lease.checkpoints)]:
            if (self._project_of(lease.job_id), download.sha256) in self.house.harmed:
                continue
            key = download.request.url.removeprefix("memory:///")
            kept = self.house.blobs.objects.get(key)
            # Others may prune a checkpoint meanwhile; nobody may when nobody else is at work.
            assert kept is not None or not self.exact, f"a lease on bytes that are gone: {download}"
            assert kept is None or kept.sha256 == download.sha256
        held = Held(
            attempt_id=lease.attempt_id,
            job_id=lease.job_id,
            number=lease.attempt,
            project=self._project_of(lease.job_id),
            token=lease.token,
            place=place,
        )
        self.town.held.append(held)

    def _of_request(self, node_id: str, request_id: str) -> Row | None:
        if not self.exact:
            return None
        found = [row for row in self.witness.now.attempts if (row.node_id, row.request_id) == (node_id, request_id)]
        return found[0] if found else None

    def _first_of_queue(
        self,
        place: Place,
        held_models: tuple[str, ...],
        joint_key: str | None,
        *,
        but: Collection[str] = (),
        standing: Standing | None = None,
    ) -> Row | None:
        """Whom the claim has to hand out: worked out from the whole table, by the rules' own order."""
        if not self.exact:
            return None
        kinds = (standing or Standing(self.house, self.witness.now)).kinds(place)
        banned = {row.job_id for row in self.witness.now.bans if row.machine_id == place.machine}
        fit = [
            row
            for row in self.witness.now.jobs
            if row.state == "queued" and row.kind in kinds and row.id not in banned and row.id not in but
            if place.project in {ROOT_PROJECT, row.project_id} and joint_key in {None, row.joint_key}
        ]
        return min(fit, key=lambda row: _rank(row, held_models), default=None)

    def _project_of(self, job_id: str) -> str:
        # Not by what users know: another thread's job may be handed out before its owner was told of it.
        with self.house.store.read() as tx:
            job = tx.jobs.get(job_id)
        assert job is not None, f"{job_id} was handed out, and there is no such job"
        return job.project_id

    # ---- users

    def submit(self, a: int, b: int) -> None:
        project = PROJECTS[a % len(PROJECTS)]
        kind = "x-own" if b % 3 else "train"
        request = SubmitJob(
            kind=kind,
            spec=self._spec(kind, project, a, b),
            priority=a % 3,
            deadline_s=60 * (1 + b) if b % 7 == 0 else None,
        )
        key = f"key-{next(self.town.numbers):07d}" if b % 2 else None
        deed = lambda: submit(self.ctx, owner(project), request, key)  # noqa: E731
        outcome = self.call(deed)
        if outcome is DIED:
            # It may be there or not; its sender asks until it is answered, and has a key if it is wise.
            self._find_new_jobs()
            return
        if isinstance(outcome, OverBudget):
            self.unchanged()
            return
        job, made = outcome
        assert made
        self.town.jobs.append((job.id, project))
        if key is not None:
            it = Submitted(project=project, request=request, key=key, job_id=job.id, at_ms=self.house.clock.now_ms())
            self.town.submitted.append(it)

    def submit_again(self, a: int, b: int) -> None:
        """Equal requests make one job, for as long as the key is remembered."""
        submitted = list(self.town.submitted)  # other threads take some away
        if not submitted:
            return
        it = submitted[-1 - a % len(submitted)]
        # A clock that was set back meanwhile may have had the request forgotten when it ran ahead.
        age_ms = max(self.house.clock.now_ms(), self.town.latest_ms) - it.at_ms
        outcome = self.call(lambda: submit(self.ctx, owner(it.project), it.request, it.key))
        if outcome is DIED:
            with suppress(ValueError):  # another thread may have died of the same
                self.town.submitted.remove(it)  # what became of it, nobody was told
            self._find_new_jobs()
            return
        if isinstance(outcome, KeyInFlight):
            assert not self.exact  # another thread sends the very same request just now
            return
        if isinstance(outcome, OverBudget):  # its key was forgotten, or the first was refused as well
            self.unchanged()
            return
        job, made = outcome
        if self.exact and not made:
            self.unchanged()
        assert made or job.id == it.job_id or not self.exact, f"{it} made {job.id}"
        if made:
            self.town.jobs.append((job.id, it.project))
            assert age_ms > self.ctx.policy.idempotency_kept_s * 1000 or not self.exact
            it.job_id, it.at_ms = job.id, self.house.clock.now_ms()

    def cancel(self, a: int, b: int) -> None:
        if not self.town.jobs:
            return
        job_id, project = self._some_job(a)
        if b % 9 == 0:
            self._stranger(project, lambda who: cancel(self.ctx, who, job_id))
            return
        was = self._state(job_id)
        outcome = self.call(lambda: cancel(self.ctx, owner(project), job_id), again=True)
        refused = was in TERMINAL and was != JobState.CANCELED
        assert outcome is DIED or not self.exact or isinstance(outcome, GiornataError) is refused, outcome

    def retry(self, a: int, b: int) -> None:
        if not self.town.jobs:
            return
        job_id, project = self._some_job(a)
        if b % 9 == 0:
            self._stranger(project, lambda who: retry(self.ctx, who, job_id))
            return
        was = self._state(job_id)
        outcome = self.call(lambda: retry(self.ctx, owner(project), job_id), again=True)
        if outcome is DIED:
            self._find_new_jobs()
            return
        refused = was not in RETRYABLE or isinstance(outcome, OverBudget)
        assert not self.exact or isinstance(outcome, GiornataError) is refused, outcome
        if not isinstance(outcome, GiornataError) and (outcome.id, project) not in self.town.jobs:
            self.town.jobs.append((outcome.id, project))

    def continue_one(self, a: int, b: int) -> None:
        """More training of what an ended job has trained: its last checkpoint is then read by two jobs."""
        if not self.town.jobs:
            return
        job_id, project = self._some_job(a)
        was = self._state(job_id)
        more = ContinueJob(spec={"max_train_steps": 10 + b % 7})

        def deed() -> Any:
            try:
                return continue_training(self.ctx, owner(project), job_id, more, None)[0]
            except InvalidInput as refusal:  # another kind, nothing to go on from, or bytes that storage has lost
                return refusal

        outcome = self.call(deed)
        if outcome is DIED:
            self._find_new_jobs()
        elif isinstance(outcome, GiornataError):
            fine = isinstance(outcome, InvalidInput | OverBudget)
            assert was not in TERMINAL or fine or not self.exact, outcome
        else:
            assert was in TERMINAL or not self.exact
            self.town.jobs.append((outcome.id, project))

    def look_at(self, a: int, b: int) -> None:
        """A job costs its shares of what its nodes cost."""
        if not self.town.jobs:
            return
        job_id, project = self._some_job(a)
        job = self.call(lambda: get_job(self.ctx, owner(project), job_id))
        if job is not DIED and self.exact:
            assert job.cost_micro_usd == self.witness.shares.of_job(self.witness.now, job_id)
            assert min(job.useful_s, job.lost_s) >= 0, job

    def send_pictures(self, a: int, b: int) -> None:
        """Bytes of a user that nothing refers to yet."""
        who, data = owner(PROJECTS[a % len(PROJECTS)]), f"picture {b % 6}".encode()
        file = FileToUpload(**named(data))
        reply = self.call(lambda: request_uploads(self.ctx, who, UploadRequest(files=(file,))))
        if reply is DIED or (ticket := reply.items[0]).exists:
            return
        self.house.blobs.put(ticket.put.url.removeprefix("memory:///"), data)
        self.call(lambda: complete_upload(self.ctx, who, ticket.upload_id, CompleteUpload()), lasting=True)

    def _spec(self, kind: str, project: str, a: int, b: int) -> dict[str, Any]:
        keep = {"checkpoints_keep_latest": 1 + a % 3, "checkpoints_keep_every": 20 if b % 4 == 0 else None}
        if kind != "train":
            return {"steps": 100, **(keep if a % 2 else {})}
        return {
            **keep,
            "model": MODELS[a % 2],
            "dataset": self.house.datasets[project],
            "instance_prompt": "sks",
            "max_train_steps": 100,
        }

    def _some_job(self, a: int) -> tuple[str, str]:
        return self.town.jobs[-1 - a % len(self.town.jobs)]

    def _state(self, job_id: str) -> str:
        return str(self.witness.jobs[job_id].state) if self.exact else ""

    def _stranger(self, project: str, deed: Any) -> None:
        stranger = owner(PROJECTS[(PROJECTS.index(project) + 1) % len(PROJECTS)])
        outcome = self.call(lambda: deed(stranger))
        assert outcome is DIED or isinstance(outcome, NotFound), outcome
        self.unchanged()

    def _find_new_jobs(self) -> None:
        known = {job_id for job_id, _ in self.town.jobs}
        with self.house.store.read() as tx:
            rows = tx.connection.execute(schema.jobs.select()).all()
        self.town.jobs += [(row.id, row.project_id) for row in rows if row.id not in known]

    # ---- loops

    def reap(self, a: int, b: int) -> None:
        """Machines whose quarantine is over get another chance: no fleet is there to replace any."""
        self.call(lambda: reap(self.ctx).given_another_chance, again=True)

    def lapse(self, a: int, b: int) -> None:
        outcome = self.call(lambda: lapse_leases(self.ctx), again=True)
        if outcome is not DIED and self.exact:
            longest_ms = self.house.clock.now_ms() + CLOCKS_AGREE_MS + self.ctx.policy.lease_s * 1000
            live = [row for row in self.witness.look().attempts if row.ended_at_ms is None and not row.lapsed]
            assert all(row.lease_expires_at_ms <= longest_ms for row in live), "a lease of more than one lease"

    def expire(self, a: int, b: int) -> None:
        self.call(lambda: expire_deadlines(self.ctx), again=True)

    def collect(self, a: int, b: int) -> None:
        self.call(lambda: bool(collect(self.ctx)), again=False)

    # ---- time and death

    def short_wait(self, a: int, b: int) -> None:
        self.house.clock.advance_s(b / 2)

    def long_wait(self, a: int, b: int) -> None:
        self.house.clock.advance_s(self.ctx.policy.lease_s + 1 + b)

    def very_long_wait(self, a: int, b: int) -> None:
        self.house.clock.advance_s(DAY_S + b)

    def clock_back(self, a: int, b: int) -> None:
        """Somebody set the server's clock."""
        self.town.latest_ms = max(self.town.latest_ms, self.house.clock.now_ms())
        self.house.clock.advance_s(-HOUR_S * (1 + b) / 16)

    def mute(self, a: int, b: int) -> None:
        """A partition: for a while nothing that this node sends arrives."""
        self.town.muted_until[a % len(PLACES)] = self.town.operations + b

    def die(self, a: int, b: int) -> None:
        """The server will die in the middle of something, soon."""
        self.dying = a


def _rank(row: Row, held_models: tuple[str, ...]) -> Any:
    return rank(
        Candidate(
            job_id=row.id,
            interrupted=bool(row.interrupted),
            priority=row.priority,
            turn=row.turn,
            model_held=row.model_key in held_models,
        )
    )
