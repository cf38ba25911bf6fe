"""A burst of requests from several clients, each with a connection of its own and one request under way."""

import itertools
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.rig.backlog import KIND
from benchmarks.rig.server import BenchmarkServer
from benchmarks.rig.wire import Wire
from giornata.domain.jobs.attempt import most_leases


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """What came of it. CPU seconds are those of the whole process: this one's and the server's."""

    wall_s: float
    latencies_s: list[float]
    client_cpu_s: float
    server_cpu_s: float

    @property
    def rate_per_s(self) -> float:
        return len(self.latencies_s) / self.wall_s


def together(bursts: Sequence[Burst]) -> Burst:
    """Return the sum of several bursts, without the time between them."""
    return Burst(
        wall_s=sum(each.wall_s for each in bursts),
        latencies_s=[latency_s for each in bursts for latency_s in each.latencies_s],
        client_cpu_s=sum(each.client_cpu_s for each in bursts),
        server_cpu_s=sum(each.server_cpu_s for each in bursts),
    )


Verb = Callable[[Wire, int], None]
BEAT = json.dumps({"step": 7, "total_steps": 600, "phase": "train", "metrics": {"loss": 0.5}}).encode()
"""A heartbeat with what an agent says in it."""


def run_clients(server: BenchmarkServer, count: int, clients: int, verb: Verb) -> Burst:
    """Call `verb` `count` times in all, from `clients` threads. Raises the first error of any."""
    numbers, lock, faults = iter(range(count)), threading.Lock(), []
    latencies_s: list[float] = []
    ready = threading.Barrier(clients + 1)

    def client(number: int) -> None:
        try:
            with Wire(server.host, server.port) as wire:
                ready.wait()
                while True:
                    with lock:
                        if next(numbers, None) is None:
                            return
                    began_s = time.perf_counter()
                    verb(wire, number)
                    latencies_s.append(time.perf_counter() - began_s)
        except Exception as error:  # noqa: BLE001 - told below, in the thread that waits
            faults.append(error)
            ready.abort()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    ready.wait()
    began_s, own_s, servers_s = time.perf_counter(), time.process_time(), server.usage.cpu_s
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return Burst(
        wall_s=time.perf_counter() - began_s,
        latencies_s=latencies_s,
        client_cpu_s=time.process_time() - own_s,
        server_cpu_s=server.usage.cpu_s - servers_s,
    )


def claim_burst(
    server: BenchmarkServer, count: int, clients: int, *, nodes: int | None = None
) -> tuple[Burst, list[tuple[str, str]]]:
    """Claims by one node for each client, or by so many `nodes`, whose jobs the caller ends before the next burst.

    Also returns attempt ids and tokens of the leases.
    """
    leases: list[tuple[str, str]] = []
    turns = itertools.count()
    # Jobs that nobody ends count against what a node may hold. Those of the last burst are held by processes before.
    burst = "" if nodes is not None else uuid.uuid4().hex[:8]
    claims_of: Counter[int] = Counter()

    def claim(wire: Wire, client: int) -> None:
        node = client if nodes is None else next(turns) % nodes
        # A node that ends nothing may hold so many, and its next process as many again.
        process = f"{burst}x{claims_of[node] // most_leases(1)}"
        claims_of[node] += 1
        status, reply = wire.call("POST", "/v1/node/claim", node_claim(node, process), token=server.node_key)
        lease = json.loads(reply).get("lease") if status == 200 else None
        if lease is None:
            raise RuntimeError(f"claim: {status} {reply!r}")
        leases.append((lease["attempt_id"], lease["token"]))

    return run_clients(server, count, clients, claim), leases


def beat_burst(server: BenchmarkServer, leases: list[tuple[str, str]], clients: int) -> Burst:
    """One heartbeat for each lease, with what an agent says in it."""
    waiting = iter(leases)

    def beat(wire: Wire, _client: int) -> None:
        attempt_id, token = next(waiting)
        status, reply = wire.call("POST", f"/v1/node/attempts/{attempt_id}/heartbeat", BEAT, token=token)
        if status != 200:
            raise RuntimeError(f"heartbeat: {status} {reply!r}")

    return run_clients(server, len(leases), clients, beat)


def call_of_node(wire: Wire, path: str, body: bytes, token: str) -> dict[str, Any]:
    """POST, and the reply. Raises RuntimeError when the server refuses."""
    status, reply = wire.call("POST", path, body, token=token)
    if status not in {200, 201}:
        raise RuntimeError(f"{path}: {status} {reply!r}")
    found: dict[str, Any] = json.loads(reply)
    return found


def node_claim(number: int, process: str = "") -> bytes:
    """A claim with a fresh request id, by a process of a node that holds one of the queue's ten models."""
    node = {"node_id": f"node_load{number:08d}{process}", "machine_id": f"machine-{number}", "name": f"node-{number}"}
    claim = {
        "request_id": uuid.uuid4().hex,
        "node": node | {"fleet": "load", "price_micro_usd_per_hour": 250_000, "vram_bytes": 24 * 2**30},
        "kinds": [KIND],
        "held_models": ["model-3"],
        "wait_s": 20,
    }
    return json.dumps(claim).encode()
