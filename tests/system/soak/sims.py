"""Simulated nodes, in a process of their own: `sims.py '{"urls": […], "key": …, "nodes": 24, "seed": 0}'`.

Each speaks real HTTP as an agent does, does the arithmetic of gate_engine.py, uploads and commits its checkpoints,
goes on from those of others, and by chance vanishes, sleeps past its lease, fails, or gives the job back. On SIGTERM
each finishes nothing more; the last line is a JSON of what was done. Whatever no server may answer is a violation.
"""

import hashlib
import json
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import httpx

from giornata.client.node import NodeClient
from giornata.domain.errors import BlobMismatch, BlobMissing, Conflict, LeaseLost, Unavailable
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import (
    Claim,
    CommitArtifact,
    CommitCheckpoint,
    CompleteAttempt,
    FailAttempt,
    Heartbeat,
    Lease,
    NodeInfo,
    ReleaseAttempt,
)
from giornata.protocol.uploads import FileToUpload, SignedUrl, UploadRequest

KIND = "x-sim"
T = TypeVar("T")
WAIT_S = 4.0
TICK_S = 0.4
STEPS_PER_TICK = 2
REPEAT_S = 0.3
FETCHES = 4
FATES = {"finish": 80, "vanish": 6, "sleep": 4, "release": 4, "break": 2, "crash": 2}


class Gone(Exception):
    """The attempt is over for this node: by its own clock, by its fate, or because the soak ends."""


class SimulatorCounts:
    """Of all nodes. Counters of Python are good enough under the interpreter's lock, but for these."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []

    def count(self, what: str) -> None:
        with self._guard:
            self.counts[what] += 1

    def violated(self, what: str) -> None:
        with self._guard:
            self.violations.append(what)


class Sim:
    """One machine; when its process vanishes, another takes its place."""

    def __init__(
        self, number: int, url: str, key: str, counts: SimulatorCounts, calm: threading.Event, seed: int
    ) -> None:
        self._machine, self._number, self._counts, self._calm = f"sim-{number}", number, counts, calm
        self._rng = random.Random(f"{seed} {number}")
        self._http = httpx.Client(base_url=url, timeout=15.0)
        self._client = NodeClient(self._http, node_key=key)
        self._stopping = calm
        self._node_id = self._new_name()
        self._renewed_s = 0.0

    def run(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._stopping.wait(self._rng.random() * WAIT_S)
        while not stopping.is_set():
            try:
                self._one_job()
            except Gone:
                continue
            except Exception:  # noqa: BLE001 - a finding, and the node goes on
                self._counts.violated(f"{self._machine}: {traceback.format_exc()}")
                stopping.wait(1.0)
        self._http.close()

    def _one_job(self) -> None:
        node = NodeInfo(
            node_id=self._node_id, machine_id=self._machine, name=self._machine, price_micro_usd_per_hour=360_000
        )
        claim = Claim(request_id=f"{self._rng.getrandbits(128):032x}", node=node, kinds=(KIND,), wait_s=WAIT_S)
        asked_s = time.monotonic()
        while not self._stopping.is_set():
            try:
                asked_s = time.monotonic()
                lease = self._client.claim(claim).lease
                break
            except Unavailable:
                self._counts.count("claim repeated")
                self._stopping.wait(REPEAT_S)
        else:
            return
        self._counts.count("claim" if lease is not None else "claim in vain")
        if lease is not None:
            self._renewed_s = asked_s
            self._work(lease)

    def _new_name(self) -> str:
        return f"node_{self._number:04d}x{self._rng.getrandbits(64):016x}"

    def _work(self, lease: Lease) -> None:
        fates = FATES if not self._calm.is_set() else {"finish": 1}
        fate = self._rng.choices(list(fates), list(fates.values()))[0]
        turns_at = self._rng.randrange(lease.spec["steps"])
        step, total = self._resume(lease)
        while step < lease.spec["steps"]:
            self._stopping.wait(TICK_S)
            if self._stopping.is_set():
                raise Gone
            for _ in range(STEPS_PER_TICK):
                step += 1
                total = (total * 31 + step) % 2**61
                if step % lease.spec["every"] == 0:
                    self._save(lease, step, total)
            beat = Heartbeat(step=step, total_steps=lease.spec["steps"], metrics={"total": float(total % 1000)})
            self._say(lease, "heartbeat", lambda beat=beat: self._client.heartbeat(lease, beat))  # type: ignore[misc]
            if fate != "finish" and step >= turns_at:
                fate = self._turn(lease, fate, step, total)
        self._finish(lease, step, total)

    def _turn(self, lease: Lease, fate: str, step: int, total: int) -> str:
        self._counts.count(fate)
        if fate == "vanish":
            self._node_id = self._new_name()  # another process takes its place
            raise Gone
        if fate == "sleep":
            self._stopping.wait(lease.lease_s * 1.5)
            self._renewed_s = time.monotonic()  # it does not know better, and tries
            return "finish"
        if fate == "release":
            self._save(lease, step, total)
            released = ReleaseAttempt(reason=Reason.RELEASED, message="told to", step=step)
            self._say(lease, "release", lambda: self._client.release(lease, released))
        else:
            reason = Reason.CRASHED if fate == "crash" else Reason.NODE_DRIVER
            report = FailAttempt(reason=reason, message="the driver is gone", step=step)
            self._say(lease, "fail", lambda: self._client.fail(lease, report))
        raise Gone

    def _resume(self, lease: Lease) -> tuple[int, int]:
        for checkpoint in lease.checkpoints:
            for _ in range(FETCHES):
                content = self._fetched(checkpoint.download.request)
                if content is not None and hashlib.sha256(content).hexdigest() == checkpoint.download.sha256:
                    step, total, salt = content.decode().split()
                    if (int(step), salt) != (checkpoint.step, lease.spec["salt"]):
                        self._counts.violated(
                            f"{lease.job_id}: a checkpoint of step {checkpoint.step} is {content!r}"
                        )
                    self._counts.count("resumed")
                    return int(step), int(total)
            self._counts.count("could not fetch a checkpoint")
            raise Gone  # the network's fault; somebody else will
        return 0, 0

    def _fetched(self, request: SignedUrl) -> bytes | None:
        self._check_clock(None)
        try:
            response = self._http.request(request.method, request.url, headers=request.headers)
        except httpx.HTTPError:
            return None
        return response.content if response.is_success else None

    def _save(self, lease: Lease, step: int, total: int) -> None:
        content = f"{step} {total} {lease.spec['salt']}\n".encode()
        commit = CommitCheckpoint(step=step, **_named(content))
        self._commit(lease, content, lambda it: self._client.commit_checkpoint(lease, commit.model_copy(update=it)))

    def _finish(self, lease: Lease, step: int, total: int) -> None:
        content = f"{step} {total} {lease.spec['salt']}\n".encode()
        commit = CommitArtifact(name="count.txt", media_type="text/plain", **_named(content))
        self._commit(lease, content, lambda it: self._client.commit_artifact(lease, commit.model_copy(update=it)))
        report = CompleteAttempt(step=step, artifacts=("count.txt",))
        ended = self._say(lease, "complete", lambda: self._client.complete(lease, report))
        if ended.job_state != "succeeded":
            self._counts.violated(f"{lease.job_id}: completed, and it is {ended.job_state}")

    def _commit(self, lease: Lease, content: bytes, commit: Callable[[dict[str, Any]], object]) -> None:
        """Ask for a place, send, commit; all of it again when the bytes were spoiled or lost on their way."""
        request = UploadRequest(files=(FileToUpload(**_named(content)),))
        while True:
            reply = self._say(lease, "ask to upload", lambda: self._client.request_uploads(lease, request))
            (ticket,) = reply.items
            if ticket.put is not None and not self._put(ticket.put, content):
                self._check_clock(lease)
                self._stopping.wait(REPEAT_S)
                continue
            upload_id = ticket.upload_id
            try:
                self._say(lease, "commit", lambda: commit({"upload_id": upload_id}))  # noqa: B023 - called at once
            except (BlobMissing, BlobMismatch):
                self._counts.count("sent again")
                continue
            return

    def _put(self, request: SignedUrl, content: bytes) -> bool:
        try:
            sent = self._http.request(request.method, request.url, headers=request.headers, content=content)
        except httpx.HTTPError:
            return False
        return sent.is_success

    def _say(self, lease: Lease, what: str, call: Callable[[], T]) -> T:
        """Repeated until it is answered, the lease is lost, or it is over by this node's own clock."""
        while True:
            self._check_clock(lease)
            asked_s = time.monotonic()
            try:
                answer = call()
            except Unavailable:
                self._counts.count(f"{what} repeated")
                self._stopping.wait(REPEAT_S)
                continue
            except LeaseLost:
                self._counts.count("lease lost")
                raise Gone from None
            except (BlobMissing, BlobMismatch):
                raise
            except Conflict as error:
                self._counts.violated(f"{what} of {lease.attempt_id}: {error!r}")
                raise Gone from error
            self._counts.count(what)
            if what == "heartbeat":
                self._renewed_s = asked_s
            return answer

    def _check_clock(self, lease: Lease | None) -> None:
        if self._stopping.is_set() or (lease and time.monotonic() - self._renewed_s > lease.lease_s):
            self._counts.count("stopped by its own clock")
            raise Gone


def _named(content: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}


def main() -> None:
    given = json.loads(sys.argv[1])
    counts, stopping, calm = SimulatorCounts(), threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGUSR1, lambda *_: calm.set())
    urls = given["urls"]
    sims = [
        Sim(number, urls[number % len(urls)], given["key"], counts, calm, given["seed"])
        for number in range(given["nodes"])
    ]
    threads = [threading.Thread(target=sim.run, args=(stopping,)) for sim in sims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.write(json.dumps({"counts": counts.counts, "violations": counts.violations}) + "\n")


if __name__ == "__main__":
    main()
