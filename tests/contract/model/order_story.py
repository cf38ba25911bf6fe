"""An order's history, folded from its events alone. Nothing is shared with the use cases but the events' names."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.contract.model.replay import ENDS


@dataclass(slots=True)
class OrderStory:
    """One order of pictures, as told. No event says that it runs: its pictures are leased one by one."""

    job_id: str
    state: str = ""
    told: int = 0  # the place up to which events have told
    succeeded: int = 0
    failed: int = 0
    retry_of: str | None = None
    ended_at_ms: int | None = None

    def tell(self, event: Any, _others: Mapping[str, Any]) -> None:
        """One more event. Fails for one that cannot follow those before."""
        data = json.loads(event.data) if isinstance(event.data, str) else event.data
        if event.type == "attempt.ended":  # a lease named after this order, which may have ended before it
            assert event.attempt_number == 0, f"{event.type} of {self.job_id}, which is no attempt's"
            return
        if event.type == "notice" and data["name"] == "input-in-doubt":
            return  # whatever has become of the order since
        assert self.state in {"", "queued", "paused"}, f"{event.type} after {self.job_id} was {self.state}"
        assert (self.state == "") is (event.type == "job.submitted"), f"{event.type} of {self.job_id}"
        assert event.attempt_number is None, f"{event.type} of {self.job_id} by an attempt"
        if event.type == "job.submitted":
            self.state, self.retry_of = "queued", data["retry_of"]
        elif event.type == "pictures.ready":
            self._ready(data)
        elif event.type in {"job.paused", "job.resumed"}:
            was, self.state = self.state, "paused" if event.type == "job.paused" else "queued"
            assert was != self.state, f"{event.type} of {self.job_id}, which was {was}"
        elif event.type in ENDS:
            self.state, self.ended_at_ms = event.type.removeprefix("job."), event.at_ms
        else:
            assert event.type == "budget.warning", f"{event.type} of an order"

    def _ready(self, data: Mapping[str, Any]) -> None:
        assert data["place"] > self.told, f"{self.job_id}: {data} after {self.told} were told"
        assert data["succeeded"] >= self.succeeded, f"{self.job_id}: {data} after {self.succeeded} had succeeded"
        assert data["failed"] >= self.failed, f"{self.job_id}: {data} after {self.failed} had failed"
        assert data["succeeded"] + data["failed"] == data["place"], f"{self.job_id}: {data} do not add up"
        self.told, self.succeeded, self.failed = data["place"], data["succeeded"], data["failed"]

    def check(self, job: Any, order: Any) -> None:
        """Compare with the order's rows. A result that came just before its order was stopped is told by no event."""
        state = "queued" if job.state == "running" else job.state
        assert (self.state, self.ended_at_ms) == (state, job.ended_at_ms), f"{job}, but its events say {self}"
        assert self.told == order.told or (state in {"canceled", "expired"} and self.told < order.told), (self, order)
        assert job.step == self.succeeded, f"{job}, but its events say {self}"
