"""A node as a process: signals, and what is left when it dies."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.contract.agent.conftest import COUNT_ENGINE
from tests.contract.agent.fake_node_api import FakeNodeApi, lease

PATIENCE_S = 20.0
ENDLESS = {"steps": 10**9, "every": 10**9, "step_s": 0.001}

RUN = """
import json, pathlib, sys
from giornata.agent.main import run_node
from giornata.agent.settings import AgentSettings
fields = json.loads(sys.argv[1])
sys.exit(run_node(AgentSettings(**fields | {"work_dir": pathlib.Path(fields["work_dir"])})))
"""


@pytest.fixture
def server(api: FakeNodeApi) -> Iterator[str]:
    """The fake, on a port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = httpx.Request(
                self.command, f"{api.base_url}{self.path}", headers=dict(self.headers), content=body
            )
            response = api.handle(request)
            content = response.read()
            self.send_response(response.status_code)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", '"e"')
            with suppress(ConnectionError):  # a node that was killed does not wait for its answer
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_POST = do_PUT = _any

        def log_message(self, *arguments: Any) -> None: ...

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api.base_url = f"http://127.0.0.1:{http.server_port}"
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    yield api.base_url
    http.shutdown()
    http.server_close()


def start(server: str, work_dir: Path, **fields: Any) -> subprocess.Popen[str]:
    settings = {
        "url": server,
        "key": "node-key",
        "machine_id": "m-1",
        "name": "test",
        "work_dir": str(work_dir),
        "kinds": [],
        "workloads": {"x-count": [sys.executable, str(COUNT_ENGINE)]},
        "claim_wait_s": 0.0,
    }
    command = [sys.executable, "-c", RUN, json.dumps(settings | fields)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def at_work(api: FakeNodeApi, **fields: Any) -> tuple[threading.Event, list[int]]:
    """An event that is set when the job has made steps, and the engine's process."""
    working, pids = threading.Event(), list[int]()

    def look() -> None:
        last = api.bodies("heartbeat")[-1]
        if last["step"] > 0:
            pids.append(last["engine_pid"])
            working.set()
        else:
            api.hooks["heartbeat"] = look

    api.leases = [lease(spec=ENDLESS, **fields)]
    api.hooks["heartbeat"] = look
    return working, pids


def ends(pid: int) -> bool:
    """Whether the process ends soon."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    return select.select([watched], [], [], PATIENCE_S)[0] == [watched]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_commits_a_checkpoint_then_gives_the_job_back(
    api: FakeNodeApi, server: str, tmp_path: Path, number: signal.Signals
) -> None:
    working, pids = at_work(api)
    node = start(server, tmp_path)
    assert working.wait(PATIENCE_S)
    node.send_signal(number)
    _, said = node.communicate(timeout=PATIENCE_S)
    assert node.returncode == 0
    assert api.routes() == ["claim", "uploads", "checkpoints", "release"]
    assert api.bodies("release")[0]["reason"] == "preempted"
    assert "finishing with a checkpoint" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "compiled"]
    assert ends(pids[0])


def test_the_second_signal_ends_everything_at_once(api: FakeNodeApi, server: str, tmp_path: Path) -> None:
    working, pids = at_work(api)
    blocked, release = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        release.wait(PATIENCE_S)

    api.hooks["checkpoints"] = block
    node = start(server, tmp_path)
    assert working.wait(PATIENCE_S)
    node.send_signal(signal.SIGTERM)
    assert blocked.wait(PATIENCE_S)
    node.send_signal(signal.SIGTERM)
    node.communicate(timeout=PATIENCE_S)
    release.set()
    assert node.returncode == 130
    assert ends(pids[0])
    assert api.bodies("release") == []


def test_an_engine_does_not_outlive_its_agent(api: FakeNodeApi, server: str, tmp_path: Path) -> None:
    working, pids = at_work(api)
    node = start(server, tmp_path)
    assert working.wait(PATIENCE_S)
    node.kill()
    node.communicate(timeout=PATIENCE_S)
    assert ends(pids[0])
    assert api.checkpoints == {}


def test_node_with_bad_settings_exits_78_with_one_line_per_fault(api: FakeNodeApi, tmp_path: Path) -> None:
    node = start("nowhere", tmp_path, key="")
    _, said = node.communicate(timeout=PATIENCE_S)
    assert node.returncode == 78
    assert "url: 'nowhere' is not the address of a server" in said
    assert "key: is missing" in said
    assert "Traceback" not in said
