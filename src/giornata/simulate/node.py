"""A modeled node: claims, prepares, trains, beats, commits, obeys, vanishes, and sometimes comes back."""

import math
from collections.abc import Callable

from giornata.domain.jobs.attempt import checkpoint_interval_s
from giornata.simulate.plane import ClaimRequest, Grant, HeartbeatAnswer, Nothing, ServerAway, SimulatedProgress
from giornata.simulate.rented.course import StepTimeline
from giornata.simulate.rented.provider import Container, SimulatedNode
from giornata.simulate.results.billed_time import IDLE, TRAIN
from giornata.simulate.work import SimulatedAttempt
from giornata.simulate.world import Simulation

RETRY_S = 5.0
ENGINE_FAILS_S = 20.0  # three tries to start an engine that ends at once; 23 s from start to start were seen
RESTART_S = 10.0  # a kubelet's first pause; it doubles there, and here it does not
TRIAL_S = 20.0  # of a small training, its model loaded: a guess


class ModeledNode(SimulatedNode):
    """One process in a container. `reachable` is false while its network is gone."""

    checks_s = 4.0  # from its start to the first claim

    def __init__(self, world: Simulation, container: Container, number: int) -> None:
        self.world, self.container, self.machine = world, container, container.machine
        self.id = f"node_{number:08d}"
        self.number = number
        self.alive = self.reachable = True
        self.zombie = False
        self.warm: str = ""  # the model that its engine holds
        self.work: SimulatedAttempt | None = None
        self.request = 0
        self.polite = True  # stops by its own clock when it cannot renew

    # ---- the process ----

    def begin(self) -> None:
        """Start the process: first the checks, then a claim or a failed engine."""
        self._turn("checks")
        if self.machine.starts:
            self._after(self.checks_s, self._ask)
        else:
            self._after(ENGINE_FAILS_S, self._end_before_asking)

    def _end_before_asking(self) -> None:
        """End the process because its engine does not start; the provider starts the process again where it was."""
        self.die()
        self.world.agenda.after(RESTART_S, lambda: self.world.fleet_of(self.container).restart(self.container))

    def vanish(self, *, lives_on_s: float) -> None:
        """The container is gone. A zombie loses its network too, for a while, and comes back to where it was."""
        if self.work is not None:
            self._book(self.work)
        if lives_on_s <= 0:
            self.die()
            return
        self.zombie, self.polite = True, False
        self.reachable = False
        self.world.batches.hush(self)
        agenda = self.world.agenda
        agenda.after(lives_on_s / 3, self._come_back)
        agenda.after(lives_on_s, self.die)

    def die(self) -> None:
        """End the process without another message to the server."""
        self.alive = False
        self.work = None
        self.world.batches.forget(self)

    def leave(self) -> None:
        """End the process as ordered; the provider would start the process again after a minute."""
        if not self.alive:
            return
        self._turn(IDLE)
        self.die()
        if not self.zombie:
            self.world.agenda.after(60.0, lambda: self.world.fleet_of(self.container).restart(self.container))

    def _come_back(self) -> None:
        self.reachable = True
        if self.alive and self.work is not None:
            self.world.batches.keep_beating(self)

    # ---- asking for work ----

    def _ask(self) -> None:
        if self.alive and self.work is None and not self.zombie:
            self._turn(IDLE)
            self._settle(None)
            self.world.batches.ask(self)

    def asked(self) -> ClaimRequest:
        """Return its request for work."""
        fleet = self.world.fleet_of(self.container)
        return ClaimRequest(
            number=self.number,
            request=self.request,
            node_id=self.id,
            machine_id=self.machine.id,
            container_id=self.container.id,
            fleet=fleet.offer.name,
            price_micro_usd_per_hour=fleet.price_now(),
            warm=self.warm,
        )

    def refused(self, nothing: Nothing) -> None:
        """Learn that no work is there, and leave when told to."""
        if nothing.leave:
            self.leave()

    def granted(self, grant: Grant) -> None:
        """Begin the attempt of the granted job."""
        world, now_ms = self.world, self.world.agenda.now_ms()
        trainer = world.trainer
        # What was before belongs to no attempt.
        self._settle(None)
        self.work = work = SimulatedAttempt(
            grant=grant,
            began_ms=now_ms,
            renewed_ms=now_ms,
            step_ms=trainer.step_s * self.machine.slowness * 1000,
            committed=grant.start_step,
            mtbi_s=grant.mtbi_s,
        )
        world.note_began(work, self.machine)
        world.batches.keep_beating(self)
        if self.machine.breaks is not None:
            self._turn("model")
            self._while(work, self.machine.breaks_after_s, lambda: self._break(work))
            return
        if grant.is_trial:
            self._turn("checks")
            self._while(work, TRIAL_S * self.machine.slowness, lambda: self._complete(work))
            return
        cold = not (trainer.stays_warm and self.warm == grant.model)
        self._turn("download")
        fetch_s = trainer.fetch_s(self.machine, resumes=grant.start_step > 0)
        self._while(work, fetch_s, lambda: self._load(work, trainer.model_s if cold else 0.0))

    def _load(self, work: SimulatedAttempt, model_s: float) -> None:
        self._turn("model")
        self._while(work, model_s, lambda: self._cache(work))

    def _cache(self, work: SimulatedAttempt) -> None:
        self.warm = work.grant.model
        self._turn("caching")
        self._while(work, self.world.trainer.caching_s, lambda: self._train(work))

    # ---- steps and checkpoints ----

    def _train(self, work: SimulatedAttempt) -> None:
        self._turn(TRAIN)
        # What checkpoints hold the steps up for is spread over the steps.
        every = self._every(work)
        work.step_ms += self.world.trainer.checkpoint_s * 1000 / every
        work.course = StepTimeline(
            self.machine,
            start_ms=self.world.agenda.now_ms(),
            step_ms=work.step_ms,
            steps=work.grant.total_steps - work.grant.start_step,
        )
        self._plan_checkpoint(work)
        self.world.agenda.at(work.reaches_ms(work.grant.total_steps), lambda: self._if_at(work, self._finish))

    def _every(self, work: SimulatedAttempt) -> int:
        """Steps between checkpoints, by the spec or by what they cost and interruptions lose."""
        if work.grant.every is not None:
            return work.grant.every
        interval_s = checkpoint_interval_s(
            cost_s=max(0.01, self.world.trainer.checkpoint_s),
            mtbi_s=work.mtbi_s,
            max_at_risk_s=work.grant.max_at_risk_s,
        )
        # The next one is not begun before the last is written (`workloads.train.pace`).
        interval_s = max(interval_s, self.world.trainer.upload_s(self.machine))
        return max(1, math.ceil(interval_s * 1000 / work.step_ms))

    def _plan_checkpoint(self, work: SimulatedAttempt) -> None:
        every, step = self._every(work), work.step_at(self.world.agenda.now_ms())
        following = (step // every + 1) * every if work.grant.every is not None else step + every
        if following < work.grant.total_steps:
            self.world.agenda.at(work.reaches_ms(following), lambda: self._if_at(work, self._snapshot))

    def _snapshot(self, work: SimulatedAttempt) -> None:
        if work.stopped_at is not None:
            return
        step = work.step_at(self.world.agenda.now_ms())
        self._while(work, self.world.trainer.upload_s(self.machine), lambda: self._commit(work, step))
        self._plan_checkpoint(work)

    def _commit(self, work: SimulatedAttempt, step: int, then: str = "") -> None:
        kept = self._call(lambda: self.world.plane.commit(work.grant, step))
        if kept is None:
            self._while(work, RETRY_S, lambda: self._commit(work, step, then))
            return
        if not kept:
            self._lose(work)
            return
        work.committed = max(work.committed, step)
        self.world.note_commit(work.grant)
        if then:
            self._give_back(work, leaves=then == "leave")

    # ---- ends ----

    def _finish(self, work: SimulatedAttempt) -> None:
        if work.stopped_at is None:
            self._turn("finish")
            self._while(work, self.world.trainer.finish_s(self.machine), lambda: self._complete(work))

    def _complete(self, work: SimulatedAttempt) -> None:
        def complete() -> bool:
            accepted = self.world.plane.complete(work.grant)
            self.world.note_end_of_training(work, polite=self.polite)
            return accepted

        self._report(work, complete, self._completed)

    def _completed(self, work: SimulatedAttempt) -> None:
        work.committed = work.grant.total_steps
        self.world.note_success(work)
        self._end(work)

    def _break(self, work: SimulatedAttempt) -> None:
        reason = self.machine.breaks
        if reason is None:
            raise ValueError(f"{self.machine.id} does not break")
        step = work.grant.start_step
        self._report(work, lambda: self.world.plane.fail(work.grant, reason, step), self._end)

    def _give_back(self, work: SimulatedAttempt, *, leaves: bool) -> None:
        step = work.stopped_at or work.grant.start_step
        after = self._end_and_leave if leaves else self._end
        self._report(work, lambda: self.world.plane.release(work.grant, step), after)

    def _report(
        self, work: SimulatedAttempt, call: Callable[[], bool], then: Callable[[SimulatedAttempt], None]
    ) -> None:
        """Say it until there is an answer, for as long as the lease is thought to hold."""
        answered = self._call(call)
        if answered is None:
            self._while(work, RETRY_S, lambda: self._report(work, call, then))
        elif answered:
            then(work)
        else:
            self._lose(work)

    def _call(self, call: Callable[[], bool]) -> bool | None:
        """Return the server's answer; None when the server gives none."""
        self.world.batches.count(1)
        try:
            return call() if self.reachable else None
        except ServerAway:
            return None

    def _end(self, work: SimulatedAttempt) -> None:
        self._close(work)
        self._ask()

    def _end_and_leave(self, work: SimulatedAttempt) -> None:
        self._close(work)
        self.leave()

    def _lose(self, work: SimulatedAttempt) -> None:
        """The lease is lost: drop everything."""
        if self.work is work:
            self.world.note_lost()
            self._end(work)

    def _close(self, work: SimulatedAttempt) -> None:
        self._book(work)
        self.work = None
        self.world.batches.hush(self)

    def _book(self, work: SimulatedAttempt) -> None:
        """The attempt's time, by what was kept of its steps."""
        share = self.world.note_ended(work, self.machine)
        self._settle(share)

    # ---- beats ----

    def progress(self) -> SimulatedProgress:
        """Return the content of the node's next heartbeat. Raises ValueError without an attempt."""
        work, now_ms = self.work, self.world.agenda.now_ms()
        if work is None:
            raise ValueError(f"{self.id} is at nothing")
        training = work.course is not None
        return SimulatedProgress(
            attempt_id=work.grant.attempt_id,
            job_id=work.grant.job_id,
            step=work.step_at(now_ms),
            phase="training" if training else "preparing",
            held=(self.warm,) if self.warm else (),
        )

    def unheard(self) -> None:
        """Learn that a heartbeat had no answer; lose the attempt after the lease."""
        work, now_ms = self.work, self.world.agenda.now_ms()
        if work is None or not self.polite:
            return
        if now_ms - work.renewed_ms >= work.grant.lease_s * 1000:
            self._lose(work)

    def heard(self, answer: HeartbeatAnswer) -> None:
        """Obey the server's answer to a heartbeat."""
        work = self.work
        if work is None:
            return
        if answer is HeartbeatAnswer.LOST:
            self._lose(work)
            return
        work.renewed_ms = self.world.agenda.now_ms()
        if answer is not HeartbeatAnswer.GO_ON and work.stopped_at is None:
            self._obey(work, leaves=answer is HeartbeatAnswer.LEAVE)

    def _obey(self, work: SimulatedAttempt, *, leaves: bool) -> None:
        """Stop at the current step, commit its checkpoint if there is a new one, and give the job back."""
        step = work.step_at(self.world.agenda.now_ms())
        if step >= work.grant.total_steps:
            return  # it is done and only has to say so
        work.stopped_at = step
        if step > work.committed:
            then = "leave" if leaves else "stay"
            self._while(work, self.world.trainer.upload_s(self.machine), lambda: self._commit(work, step, then))
        else:
            self._give_back(work, leaves=leaves)

    # ---- time ----

    def _turn(self, doing: str) -> None:
        if self.container.account is not None and not self.zombie:
            self.container.account.turn(doing, at_ms=self.world.agenda.now_ms())

    def _settle(self, useful_share: float | None) -> None:
        if self.container.account is not None and not self.zombie:
            self.container.account.settle(useful_share=useful_share, at_ms=self.world.agenda.now_ms())

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self.world.agenda.after(seconds, lambda: act() if self.alive else None)

    def _while(self, work: SimulatedAttempt, seconds: float, act: Callable[[], None]) -> None:
        self.world.agenda.after(seconds, lambda: self._if_at(work, lambda _: act()))

    def _if_at(self, work: SimulatedAttempt, act: Callable[[SimulatedAttempt], None]) -> None:
        if self.alive and self.work is work:
            act(work)
