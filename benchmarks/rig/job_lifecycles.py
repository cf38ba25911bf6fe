"""Whole lives of jobs that do nothing, in our queue and in others on the same PostgreSQL."""

import json
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.rig.backlog import KIND
from benchmarks.rig.bursts import node_claim, run_clients
from benchmarks.rig.server import SECRETS_KEY, BenchmarkServer
from benchmarks.rig.wire import Wire
from giornata.cli.operate.composition import open_control_plane
from giornata.cli.settings import Settings
from giornata.control.attempts.claiming.claim import claim_once
from giornata.control.attempts.ending.complete import complete
from giornata.control.caller import Caller
from giornata.control.jobs.submission.submit import submit
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.node.work import Claim, CompleteAttempt
from giornata.protocol.project.admin import ROOT_PROJECT, Scope

Life = dict[str, float]
PEERS = ("procrastinate", "pgqueuer")
PATIENCE_S = 180.0


def over_http(server: BenchmarkServer, jobs: int, clients: int) -> Life:
    """Submit, then claim and complete, every request durable before the next."""
    job = json.dumps({"kind": KIND, "spec": {}}).encode()

    def submit_one(wire: Wire, _client: int) -> None:
        status, reply = wire.call("POST", "/v1/jobs", job, token=server.admin_key)
        if status not in {200, 201, 202}:
            raise RuntimeError(f"submit: {status} {reply!r}")

    def work_one(wire: Wire, client: int) -> None:
        lease = json.loads(wire.call("POST", "/v1/node/claim", node_claim(client), token=server.node_key)[1])["lease"]
        path = f"/v1/node/attempts/{lease['attempt_id']}/complete"
        status, reply = wire.call("POST", path, b'{"step": 1}', token=lease["token"])
        if status != 200:
            raise RuntimeError(f"complete: {status} {reply!r}")

    enqueue_s = run_clients(server, jobs, clients, submit_one).wall_s
    return {"enqueue_s": enqueue_s, "work_s": run_clients(server, jobs, clients, work_one).wall_s, "done": jobs}


def by_use_cases(data: Path, database: str, jobs: int, clients: int) -> Life:
    """The same verbs called in this process, without HTTP: as the peers are, a library on the database."""
    with open_control_plane(
        Settings(data=data, database=database, secrets_key=SECRETS_KEY), base_url=lambda: "http://localhost"
    ) as installation:
        ctx = installation.context
        admin = Caller(project_id=ROOT_PROJECT, scopes=Scope.ADMIN.reach, key_id="load")
        node = Caller(project_id=ROOT_PROJECT, scopes=Scope.NODE.reach, key_id="load")
        job = SubmitJob(kind=KIND, spec={})

        def submit_one(_client: int) -> None:
            submit(ctx, admin, job, idempotency_key=None)

        def work_one(client: int) -> None:
            lease = claim_once(ctx, node, Claim.model_validate_json(node_claim(client))).lease
            if lease is None:
                raise RuntimeError("nothing to claim")
            complete(ctx, lease.attempt_id, CompleteAttempt(step=1))

        enqueue_s = _timed(jobs, clients, submit_one)
        return {"enqueue_s": enqueue_s, "work_s": _timed(jobs, clients, work_one), "done": jobs}


def of_peer(python: Path, name: str, database: str, jobs: int, clients: int) -> Life | None:
    """None, with a line that says so, when the queue is not there."""
    command = [str(python), str(Path(__file__).with_name("other_queue.py")), name, database, str(jobs), str(clients)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"SKIPPED {name}: {error}")
        return None
    if ran.returncode != 0:
        print(f"SKIPPED {name}: {ran.stderr.strip().splitlines()[-1:]}")
        return None
    life: Life = json.loads(ran.stdout.splitlines()[-1])
    return life


def _timed(jobs: int, clients: int, verb: Callable[[int], None]) -> float:
    numbers, lock, faults = iter(range(jobs)), threading.Lock(), []

    def client(number: int) -> None:
        try:
            while True:
                with lock:
                    if next(numbers, None) is None:
                        return
                verb(number)
        except Exception as error:  # noqa: BLE001 - told below, in the thread that waits
            faults.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return time.perf_counter() - began_s
