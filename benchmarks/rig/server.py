"""A real server in a process of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rig.processes import Usage, usage_of
from benchmarks.rig.wire import Wire

PATIENCE_S = 60.0
SECRETS_KEY = "c2VjcmV0cyBvZiBiZW5jaG1hcmtzLCB3aGljaCBhcmU="


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkServer:
    """Where it is, and the keys that it takes."""

    host: str
    port: int
    pid: int
    admin_key: str
    node_key: str
    log: Path

    @property
    def usage(self) -> Usage:
        return usage_of(self.pid)


@contextmanager
def server(
    data: Path, database: str, *, lease_s: float, source: Path | None = None, more: Mapping[str, str] | None = None
) -> Iterator[BenchmarkServer]:
    """`giornata server` on `database` and a free port, with the defaults of its settings but for the lease.

    `more` are further settings, by the names of their variables.

    `source` is the folder of another version's package; without it, the one that is installed is run.
    """
    data.mkdir(parents=True, exist_ok=True)
    log = data / "server.log"
    command = [sys.executable, "-m", "giornata", "server", "--port", "0", "--data", str(data)]
    command += ["--database", database, "--lease", str(lease_s)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIORNATA_")}
    clean["GIORNATA_SECRETS_KEY"] = SECRETS_KEY  # which a server on PostgreSQL does not make for itself
    clean |= more or {}
    if source is not None:
        clean["PYTHONPATH"] = str(source)
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=clean)
    try:
        yield _connected(process, data, log)
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _connected(process: "subprocess.Popen[bytes]", data: Path, log: Path) -> BenchmarkServer:
    file, ends_s = data / "server.json", time.monotonic() + PATIENCE_S
    while not file.exists():
        if process.poll() is not None or time.monotonic() > ends_s:
            sys.exit(f"the server did not start:\n{log.read_text()}")
        time.sleep(0.05)
    host, _, port = json.loads(file.read_text())["url"].removeprefix("http://").partition(":")
    admin_key = (data / "admin.key").read_text().strip()
    with Wire(host, int(port)) as wire:
        body = json.dumps({"scope": "node", "name": "load"}).encode()
        status, reply = wire.call("POST", "/v1/keys", body, token=admin_key)
    if status != 201:
        sys.exit(f"no node key could be made: {status} {reply!r}")
    node_key = json.loads(reply)["secret"]
    return BenchmarkServer(
        host=host, port=int(port), pid=process.pid, admin_key=admin_key, node_key=node_key, log=log
    )
