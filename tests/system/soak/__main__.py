"""An hour with everything at once: `make soak-hour`, or `python -m tests.system.soak --minutes 60`.

PostgreSQL, two servers behind chaos proxies, three real nodes with quick engines, two dozen simulated ones, users who
submit, cancel, retry, read, follow and download; network faults that harm calls, and kills, pauses and starvation of
processes. Then the network faults end, everything that is open is brought to its end, and it is looked at:

- no job is lost, each ended as its user could expect and was told, and stays so;
- results and checkpoints are the bytes of an undisturbed job; bytes, rows and references agree, nothing is left over;
- all that the model demands of the database holds: events tell the whole replayed, bills add up, nobody is blamed
  without a reason (tests/contract/model/invariants.py);
- no process, temporary file or upload is left, every process ended well, no server answered 500;
- nothing grew that is not documented to grow: see `gauges.growth`, whose criterion is used from ten minutes on.

A line each minute, then one of JSON. Ends with 1 when something is violated.
"""

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.system.conftest import MARK, marked
from tests.system.soak import gauges, verdict
from tests.system.soak.installation import GaveUpWaiting, SoakInstallation, running_installation, until
from tests.system.soak.network_faults import NetworkFaults
from tests.system.soak.process_kills import FINE, PLACES, SPARED, ProcessKills
from tests.system.soak.training import SoakTrainer
from tests.system.soak.users import Book, SoakUser, state_of

from giornata.client import Client
from giornata.protocol.project.admin import Scope

# Below this a process still warms up in the middle third.
GROWTH_COUNTS_FROM_MINUTES = 10.0
DRAIN_S = 240.0


@dataclass(slots=True, kw_only=True)
class SoakOutcome:
    """What was seen."""

    samples: list[gauges.GaugeSample] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    sims: dict[str, int] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)


def options_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--quick", action="store_true", help="about a minute, with kills in quick succession")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sims", type=int, default=24, help="simulated nodes")
    parser.add_argument("--users", type=int, default=6)
    parser.add_argument("--user-every", type=float, default=2.0, help="seconds between what a user does")
    parser.add_argument("--kill-every", type=float, default=6.0, help="seconds between what the process_kills does")
    parser.add_argument("--harm-every", type=float, default=0.5, help="seconds between what the network does")
    parser.add_argument("--sample-every", type=float, default=60.0)
    parser.add_argument("--train-every", type=float, default=300.0, help="seconds between real trainings; 0: none")
    parser.add_argument("--garbage-after", type=float, default=300.0, help="seconds that uncommitted bytes are kept")
    options = parser.parse_args(arguments)
    if options.quick:
        options.minutes, options.kill_every, options.sample_every = 0.75, 3.0, 15.0
        options.sims, options.garbage_after, options.train_every = 12, 20.0, 0.0
    return options


def main(arguments: list[str]) -> int:
    options = options_of(arguments)
    began_s, seen, book = time.monotonic(), SoakOutcome(), Book()
    mark = f"soak-{secrets.token_hex(8)}"
    with running_installation(mark, garbage_after_s=options.garbage_after) as installation:
        if installation.small_disk is None:
            say("SKIPPED filling a disk: a small one may not be mounted here")
        with Client(installation.servers[0].url, installation.admin_key) as client:
            installation.node_key = client.create_key(scope=Scope.NODE).secret
            network_faults = NetworkFaults(installation, every_s=options.harm_every, seed=options.seed)
            process_kills = ProcessKills(installation, every_s=options.kill_every, seed=options.seed)
            trainer = SoakTrainer(installation, client, book, every_s=options.train_every)
            if options.train_every:
                trainer.prepare()
            with _sims(installation, options, seen) as sims:
                trainers = [trainer] if options.train_every else []
                _live(
                    installation, client, book, seen, network_faults, process_kills, trainers, sims, options, began_s
                )
            seen.violations += [process_kills.failure] if process_kills.failure else []
        seen.violations += _closed(installation)
        found, seen.states = verdict.findings(installation, book, trainer.reference)
        seen.violations += found + book.violations
        seen.violations += [f"temporary: {path}" for path in installation.temporary.rglob("*") if path.is_file()]
        log_bytes = sum(server.log.stat().st_size for server in installation.servers)
    seen.violations += [f"left behind: {line}" for line in marked(mark).values()]
    grown = gauges.growth(seen.samples, ("server 0", "spared agent"))
    if options.minutes >= GROWTH_COUNTS_FROM_MINUTES:
        seen.violations += [f"grew: {it}" for it in grown["grew"]]  # type: ignore[attr-defined]
    for violation in seen.violations:
        say(f"VIOLATED {violation}")
    result = {
        **{"soak": "everything at once", "quick": options.quick, "minutes": options.minutes, "seed": options.seed},
        **{"wall_s": round(time.monotonic() - began_s), "violations": len(seen.violations)},
        **{"jobs": seen.states, "users": book.counts, "sims": seen.sims, "harms": network_faults.harms},
        **{"executions": process_kills.actions, "growth": grown, "server_log_bytes": log_bytes},
        "cores": gauges.cores(seen.samples),
        "last": gauges.as_json(seen.samples[-1]) if seen.samples else None,
    }
    say(json.dumps(result))
    return 1 if seen.violations else 0


def _live(
    installation: SoakInstallation,
    client: Client,
    book: Book,
    seen: SoakOutcome,
    network_faults: NetworkFaults,
    process_kills: ProcessKills,
    trainers: list[SoakTrainer],
    sims: "subprocess.Popen[str]",
    options: argparse.Namespace,
    began_s: float,
) -> None:
    """The network_faults, and the calm after it."""
    process_kills.replace_the_dead()
    users = [
        SoakUser(installation, book, number, every_s=options.user_every, seed=options.seed)
        for number in range(options.users)
    ]
    everybody: list[SoakUser | SoakTrainer | NetworkFaults | ProcessKills] = [
        *users,
        *trainers,
        network_faults,
        process_kills,
    ]
    for one in everybody:
        one.start()
    ends_s = time.monotonic() + options.minutes * 60
    pause = threading.Event()
    while time.monotonic() < ends_s and not process_kills.failure:
        pause.wait(min(options.sample_every, max(0.0, ends_s - time.monotonic())))
        _measure(installation, seen, sims, began_s, process_kills, network_faults)
    say("the network_faults is over: what is open is brought to its end")
    for user in users:
        user.submit_no_more()
    for trainer in trainers:
        trainer.stop()
    process_kills.stop()
    network_faults.stop()
    sims.send_signal(signal.SIGUSR1)
    # Jobs may be banned from each machine that there is.
    for place in range(PLACES, 2 * PLACES):
        installation.start_agent(place)
    try:
        until(lambda: state_of(client, book) == 0, "every job to end", DRAIN_S)
    except GaveUpWaiting as error:
        seen.violations.append(f"{error}: {[client.get_job(it).model_dump_json() for it in sorted(book.open)]}")
    _measure(installation, seen, sims, began_s, process_kills, network_faults)
    for user in users:
        user.stop()


def _measure(
    installation: SoakInstallation,
    seen: SoakOutcome,
    sims: "subprocess.Popen[str]",
    began_s: float,
    process_kills: ProcessKills,
    network_faults: NetworkFaults,
) -> None:
    pids: Mapping[str, int] = {
        **{server.name: server.process.pid for server in installation.servers},
        **{"spared agent": installation.agents[SPARED].process.pid, "postgres": installation.postgres.pid},
        **{"simulated nodes": sims.pid, "users and proxies": os.getpid()},
    }
    seen.samples.append(gauges.sample(installation, pids, began_s, seen.samples[-1] if seen.samples else None))
    deaths = f"{process_kills.actions.total()} executions, {network_faults.harms.total()} harms"
    say(f"{gauges.described(seen.samples[-1])}; {deaths}")


@contextmanager
def _sims(
    installation: SoakInstallation, options: argparse.Namespace, seen: SoakOutcome
) -> Iterator["subprocess.Popen[str]"]:
    given = {"urls": [server.control.url for server in installation.servers], "key": installation.node_key}
    command = [sys.executable, str(Path(__file__).with_name("sims.py"))]
    process = subprocess.Popen(
        [*command, json.dumps({**given, "nodes": options.sims, "seed": options.seed})],
        stdout=subprocess.PIPE,
        text=True,
        env={**installation.servers[0].environment, MARK: installation.mark},
    )
    try:
        yield process
    finally:
        process.terminate()
        said, _ = process.communicate(timeout=60)
    account: dict[str, Any] = json.loads(said.splitlines()[-1])
    seen.sims = account["counts"]
    seen.violations += account["violations"]


def _closed(installation: SoakInstallation) -> list[str]:
    """End all agents and both servers; what did not end as it should, and what they left on their disks."""
    found = list(installation.ended)
    for agent in installation.agents.values():
        if agent.process.poll() is None:
            agent.process.terminate()
    for agent in installation.agents.values():
        code = agent.process.wait(60)
        found += [f"{agent.machine_id} ended with {code}"] if code not in FINE else []
        found += [f"a process of {agent.machine_id} is left: {line}" for line in marked(agent.mark).values()]
        jobs = agent.work_dir / "attempts"
        found += [f"{path} is on a node's disk" for path in jobs.rglob("*") if path.is_file()]
    found += [f"{server.name} ended with {code}" for server in installation.servers if (code := server.stop()) != 0]
    return found


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
