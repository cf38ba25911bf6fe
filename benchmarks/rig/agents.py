"""Simulated agents: the calls of real ones, at their pace, over connections of their own, and no work in between.

Open loop: what a node does next is due at a fixed time, whether or not the server keeps up. `LoadCounts.lags_s` says
how late the generator itself began a call; while that stays small, a latency is the server's.
"""

import asyncio
import hashlib
import json
import random
import time
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from benchmarks.rig.backlog import KIND
from benchmarks.rig.running_fleet import NodeLease, node_id
from benchmarks.rig.server import BenchmarkServer
from benchmarks.rig.wire import call_once, request

TIMEOUT_S = 30.0
WAIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds between a node's beats, between its checkpoints, and from a job's begin to its end; 0: never."""

    beat_s: float
    checkpoint_s: float
    job_s: float


@dataclass(slots=True)
class LoadCounts:
    """Latencies by call, what went wrong, and how late calls began."""

    latencies_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: Counter[str] = field(default_factory=Counter)
    lags_s: list[float] = field(default_factory=list)


class Agents:
    """Drives nodes 1 to len(held) for a while."""

    def __init__(self, server: BenchmarkServer, held: list[NodeLease], pace: Pace, *, seed: int = 0) -> None:
        self.counts = LoadCounts()
        self._server, self._held, self._pace, self._rng = server, held, pace, random.Random(seed)
        self._ends_s = 0.0

    async def run(self, seconds: float, *, idle: int) -> None:
        """Until every call that was due within `seconds` is answered. `idle` more nodes wait for work in vain."""
        began_s = time.monotonic()
        self._ends_s = began_s + seconds
        async with asyncio.TaskGroup() as group:
            for number, lease in enumerate(self._held, 1):
                group.create_task(self._node(number, lease, began_s))
            for number in range(idle):
                group.create_task(self._idle_node(len(self._held) + 1 + number, min(WAIT_S, seconds)))

    async def _node(self, number: int, lease: NodeLease | None, began_s: float) -> None:
        periods = {"beat": self._pace.beat_s, "checkpoint": self._pace.checkpoint_s, "job": self._pace.job_s}
        # Somewhere in the middle of everything, as nodes are that have been at work for a while.
        due = {name: began_s + self._rng.random() * period for name, period in periods.items() if period}
        step = 0
        while due:
            name = min(due, key=lambda each: due[each])
            if due[name] >= self._ends_s:
                return
            await self._until(due[name])
            due[name] += periods[name]
            if name == "job":
                lease = await self._next_job(number, lease)
            elif lease is not None:
                step += 1
                await (self._beat(lease, step) if name == "beat" else self._checkpoint(lease, step))

    async def _until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - time.monotonic()))
        self.counts.lags_s.append(time.monotonic() - at_s)

    async def _beat(self, lease: NodeLease, step: int) -> None:
        said = {"step": step, "total_steps": 600, "phase": "train", "metrics": {"loss": 0.5}}
        await self._post("heartbeat", f"/v1/node/attempts/{lease.attempt_id}/heartbeat", said, lease.token)

    async def _next_job(self, number: int, lease: NodeLease | None) -> NodeLease | None:
        if lease is not None:
            path = f"/v1/node/attempts/{lease.attempt_id}/complete"
            await self._post("complete", path, {"step": 600}, lease.token)
        found = await self._post("claim", "/v1/node/claim", _claim(number, KIND), self._server.node_key)
        given = (found or {}).get("lease")
        return None if given is None else NodeLease(attempt_id=given["attempt_id"], token=given["token"])

    async def _checkpoint(self, lease: NodeLease, step: int) -> None:
        content = f"{lease.attempt_id} {step}".encode()
        bytes_of = {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}
        base = f"/v1/node/attempts/{lease.attempt_id}"
        reply = await self._post("ask to upload", f"{base}/uploads", {"files": [bytes_of]}, lease.token)
        if reply is None:
            return
        ticket = reply["items"][0]
        url = urlsplit(ticket["put"]["url"])
        message = request("PUT", f"{url.path}?{url.query}", content, token="", keep=False)
        if await self._call("upload", message) is not None:
            commit = {"step": step, "upload_id": ticket["upload_id"], **bytes_of}
            await self._post("commit", f"{base}/checkpoints", commit, lease.token)

    async def _idle_node(self, number: int, within_s: float) -> None:
        await asyncio.sleep(self._rng.random() * within_s)
        while (left_s := self._ends_s - time.monotonic()) > 0:
            claim = _claim(number, "x-nothing") | {"wait_s": min(WAIT_S, left_s)}
            if await self._post("wait in vain", "/v1/node/claim", claim, self._server.node_key) is None:
                await asyncio.sleep(1.0)

    async def _post(self, name: str, path: str, body: dict[str, object], token: str) -> dict[str, object] | None:
        reply = await self._call(name, request("POST", path, json.dumps(body).encode(), token=token, keep=False))
        return None if reply is None else json.loads(reply)

    async def _call(self, name: str, message: bytes) -> bytes | None:
        began_s = time.monotonic()
        try:
            status, reply = await call_once(
                self._server.host, self._server.port, message, timeout_s=TIMEOUT_S + WAIT_S
            )
        except (OSError, EOFError, TimeoutError) as error:
            self.counts.errors[f"{name}: {type(error).__name__}"] += 1
            return None
        self.counts.latencies_s[name].append(time.monotonic() - began_s)
        if status >= 300:
            self.counts.errors[f"{name}: {status}"] += 1
            return None
        return reply


def _claim(number: int, kind: str) -> dict[str, object]:
    node = {"node_id": node_id(number), "machine_id": f"machine-{number}", "name": f"node-{number}", "fleet": "load"}
    node["price_micro_usd_per_hour"] = 250_000  # type: ignore[assignment]
    return {
        "request_id": uuid.uuid4().hex,
        "node": node,
        "kinds": [kind],
        "held_models": ["model-3"],
        "wait_s": WAIT_S,
    }
