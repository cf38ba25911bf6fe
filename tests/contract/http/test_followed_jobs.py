"""Open streams share one look at the store."""

import asyncio
import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.contract.http.test_connection_quota import following, until
from tests.contract.http.test_streams import submitted
from tests.contract.http.test_wakeup import LONG_S, settled
from tests.fixtures.rows_read import sent_statements
from tests.fixtures.served import Served, serving

from giornata.api.replies.followed_jobs import STEPS_TOLD_PER_S, FollowedJobs, Follower, Positions
from giornata.api.settings import ApiSettings
from giornata.api.wakeup import Wakeup
from giornata.control.access.authenticate import authenticate
from giornata.control.jobs.reading.history_heads import HistoryPart, read_heads
from giornata.store.schema import jobs

STREAMS, LOOKS = 50, 5
PATIENT = ApiSettings(stream_poll_s=0.02)
EVENTS = HistoryPart.EVENTS


def test_statements_of_idle_streams_do_not_grow_with_the_streams(tmp_path: Path) -> None:
    with serving(tmp_path, PATIENT) as served, ExitStack() as streams:
        jobs = {submitted(served) for _ in range(STREAMS)}
        for job_id in jobs:
            streams.enter_context(following(served, job_id))
        until(served, lambda: len(served.app.state.followed_jobs._followers) == STREAMS)
        with sent_statements() as sent:
            until(served, lambda: sum("max(events.id)" in text for text, _ in sent.statements) > LOOKS)
        # The first look may have begun before the last stream came.
        looks = [values for text, values in sent.statements if "max(events.id)" in text][1:]
        assert all(set(json.loads(values[0])) == jobs for values in looks)
        # What else was sent checks the one key, once in some seconds, and what the last stream had to look for.
        assert len(sent.statements) - len(looks) < STREAMS / 2


class Room:
    """Followers of two jobs of an installation, without HTTP."""

    def __init__(self, served: Served) -> None:
        self.served, self.wakeup = served, Wakeup(threads=1)
        self.jobs = FollowedJobs(served.ctx, self.wakeup, poll_s=0.01)
        self.ids = [submitted(served), submitted(served)]
        self.read = dict(read_heads(served.ctx, [(EVENTS, each) for each in self.ids]))
        made = [served.call("POST", "/v1/keys", served.keys.admin, json={"scope": "member"}).json() for _ in self.ids]
        self.callers = [authenticate(served.ctx, each["secret"]) for each in made]

    def follower(self, number: int) -> Follower:
        """Return a follower that has read all."""
        job_id = self.ids[number]
        read = self.read[EVENTS, job_id]
        return Follower(job_id=job_id, caller=self.callers[number], positions=lambda: [(EVENTS, read)])

    async def only_first_wakes(self, stack: ExitStack) -> None:
        """The second waits on while the first is woken, and after."""
        first, second = self.follower(0), self.follower(1)
        stack.enter_context(self.jobs.follow(second))
        stack.enter_context(self.jobs.follow(first))
        waits = asyncio.create_task(second.wait(LONG_S))
        assert await first.wait(LONG_S)
        assert await first.wait(LONG_S), "it has not read what lies behind its position"
        await settled()
        assert not waits.done()
        waits.cancel()


@pytest.mark.parametrize("what", ["something happens", "its job is deleted", "its key is revoked"])
def test_stream_is_woken_alone_when(served: Served, what: str) -> None:
    room = Room(served)
    match what:
        case "something happens":
            served.client().cancel(room.ids[0])
        case "its job is deleted":
            served.client().delete_job(room.ids[0], cancel=True)
        case _:
            served.call("DELETE", f"/v1/keys/{room.callers[0].key_id}", served.keys.admin).raise_for_status()

    async def scene() -> None:
        with ExitStack() as stack:
            await room.only_first_wakes(stack)

    asyncio.run(scene())


def test_stream_of_events_tells_that_its_job_is_at_another_step(served: Served) -> None:
    headers = {"Accept": "text/event-stream", "Authorization": f"Bearer {served.keys.member}"}
    url = f"{served.url}/v1/jobs/{submitted(served)}/events"
    with served.http.stream("GET", url, headers=headers) as response:
        lines = response.iter_lines()
        with served.ctx.store.begin() as tx:
            tx.connection.execute(sa.update(jobs).values(step=7))  # type: ignore[attr-defined]
        assert ": step" in lines


def test_new_steps_are_told_to_few_streams_at_a_time_and_each_has_its_turn(served: Served) -> None:
    async def scene() -> None:
        followed = FollowedJobs(served.ctx, Wakeup(threads=1), poll_s=1)
        authenticated = authenticate(served.ctx, served.keys.member)
        streams = [
            Follower(job_id=f"job_{number}", caller=authenticated, positions=lambda: (), step=0)
            for number in range(3 * STEPS_TOLD_PER_S)
        ]
        told = list[int]()
        for second in range(1, 13):
            heads = {(HistoryPart.STEP, f"job_{number}"): second for number in range(len(streams))}
            for _ in range(4):  # looks
                followed.tell_steps(streams, heads, now_s=float(second))
            told += [number for number, each in enumerate(streams) if each.take_step()]
        assert set(Counter(told).values()) == {4}
        assert len(told) == 12 * STEPS_TOLD_PER_S
        for later in (20.0, 21.0):
            followed.tell_steps(streams, heads, now_s=later)
        assert not any(each.is_elsewhere(heads) for each in streams)
        assert sum(each.take_step() for each in streams) == 2 * STEPS_TOLD_PER_S, "the last ones know it already"
        followed.tell_steps(streams, heads, now_s=30.0)
        assert not any(each.take_step() for each in streams), "it is told once"

    asyncio.run(scene())


def test_row_that_came_between_a_read_and_the_wait_is_seen(served: Served) -> None:
    room = Room(served)
    late = room.follower(0)
    served.client().cancel(room.ids[0])  # no notice is left of it when the stream begins to wait

    async def scene() -> None:
        with room.jobs.follow(late):
            assert await late.wait(LONG_S)

    asyncio.run(scene())


def test_streams_look_for_themselves_when_the_shared_look_fails(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    room = Room(served)

    def fail() -> Positions:
        raise ValueError("a defect")

    async def scene() -> None:
        broken = Follower(job_id=room.ids[0], caller=room.callers[0], positions=fail)
        other = room.follower(1)  # it has read all: only the failure wakes it
        with room.jobs.follow(broken), room.jobs.follow(other):
            assert await broken.wait(LONG_S) and await other.wait(LONG_S)
            assert await broken.wait(LONG_S), "the task goes on"

    asyncio.run(scene())
    assert "the look for 2 event streams failed" in caplog.text


def test_task_ends_with_the_last_stream_and_begins_with_the_next(served: Served) -> None:
    room = Room(served)
    served.client().cancel(room.ids[0])

    async def scene() -> None:
        for _ in range(2):
            follower = room.follower(0)
            with room.jobs.follow(follower):
                assert await follower.wait(LONG_S)
            task = room.jobs._watch
            assert task is not None
            await asyncio.wait_for(task, LONG_S)

    asyncio.run(scene())
    assert room.wakeup.waiting == 0


def test_closing_server_wakes_every_stream(served: Served) -> None:
    room = Room(served)

    async def scene() -> None:
        with room.jobs.follow(idle := room.follower(1)):
            wait = asyncio.create_task(idle.wait(LONG_S))
            await settled()
            assert not wait.done()
            room.wakeup.close()
            assert await wait

    asyncio.run(scene())
