"""Jobs of the platform that a real Ray carries out: stopped by their owner, and followed to their end by another node
when the first one is killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ray.job_submission import JobStatus, JobSubmissionClient
from tests.system.conftest import Up, marked, until
from tests.system.pretrain.clusters import RayCluster
from tests.system.pretrain.runs import PATIENCE_S, halted, small_run, traced

from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import Reason
from giornata.pretrain.evaluation.kept import kept_evaluations, samples_of
from giornata.pretrain.run_state.committed import progress_of, run_storage
from giornata.pretrain.run_state.proof import proof_of
from giornata.protocol.pretraining import Evaluate, PretrainConfig
from giornata.protocol.project.admin import Scope
from giornata.workloads.pretrain.ray_jobs import METADATA

pytestmark = pytest.mark.timeout(1500)
LONG, ENDLESS, NEVER = 800, 20_000, 10**6


class ServerBesideCluster:
    """A server, and nodes next to the cluster that take its jobs."""

    def __init__(self, up: Up, cluster: RayCluster, folder: Path) -> None:
        self.client, self._up, self._cluster, self._folder = up.client, up, cluster, folder
        self._key = up.client.create_key(scope=Scope.NODE).secret
        self._nodes: list[subprocess.Popen[bytes]] = []
        self.ray = until(lambda: _answering(cluster.dashboard), "Ray to take jobs", PATIENCE_S)

    def add(self, machine: str) -> "subprocess.Popen[bytes]":
        """One more node. It also has a kind of its own, which the engine for Ray knows nothing of."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIORNATA_")}
        given = {
            "GIORNATA_URL": json.loads((self._up.data / "server.json").read_text())["url"],
            "GIORNATA_NODE_KEY": self._key,
            "GIORNATA_DATA": str(self._folder / machine),
            "RAY_ADDRESS": self._cluster.dashboard,
            "GIORNATA_GRACE_S": "120",
        }
        kinds = ("--kind", "pretrain", "--kind", "x-count", "--workload", f"x-count={sys.executable} -c pass")
        with (self._folder / f"{machine}.log").open("wb") as log:
            node = subprocess.Popen(
                [sys.executable, "-m", "giornata", "node", *kinds, "--machine-id", machine],
                env=clean | given | dict([self._up.mark.split("=")]),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._nodes.append(node)
        return node

    def submit(self, config: PretrainConfig) -> str:
        """The job's id."""
        return self.client.submit({"config": config.to_json()}, kind="pretrain").id

    def until(self, there: Callable[[], object], what: str) -> None:
        """Wait for something that comes while a job goes on."""
        until(there, lambda: f"{what}\n{self.said()}", PATIENCE_S)

    def said(self) -> str:
        """By the nodes, at last."""
        return "\n".join(log.read_text(errors="replace")[-3000:] for log in sorted(self._folder.glob("*.log")))

    def runs(self, job: str) -> list[JobStatus]:
        """Of this job, that Ray was given."""
        return [each.status for each in self.ray.list_jobs() if (each.metadata or {}).get(METADATA) == job]

    def engines(self) -> list[int]:
        """Their processes."""
        return sorted(pid for pid, line in marked(self._up.mark).items() if "giornata.engine" in line)

    def end(self) -> None:
        """All nodes."""
        for node in self._nodes:
            if node.poll() is None:
                node.send_signal(signal.SIGTERM)
                assert node.wait(PATIENCE_S) == 0, self.said()


def _answering(dashboard: str) -> JobSubmissionClient | None:
    """Ray listens to jobs later than to everything else."""
    try:
        return JobSubmissionClient(dashboard)
    except ConnectionError:
        return None


@pytest.fixture
def platform(start_up: Callable[..., Up], cluster: RayCluster, tmp_path: Path) -> Iterator[ServerBesideCluster]:
    platform = ServerBesideCluster(start_up("--nodes", "0", "--lease", "10"), cluster, tmp_path)
    yield platform
    platform.end()


def test_a_run_stops_with_a_checkpoint_for_a_node_that_leaves_and_for_its_owner(
    platform: ServerBesideCluster, cluster: RayCluster, tmp_path: Path
) -> None:
    """The first node is told to leave, the second one begins the run again; then the owner cancels the job."""
    config = small_run(tmp_path, checkpoint_steps=NEVER)
    first, second = config.phases
    config = replace(config, phases=(replace(first, samples=ENDLESS), second))
    node = platform.add("shed-1")
    job = platform.submit(config)
    platform.until(lambda: _reached(config) >= 3, "the third step")
    assert progress_of(run_storage(config)).step == 0
    node.send_signal(signal.SIGTERM)
    assert node.wait(PATIENCE_S) == 0, platform.said()
    left = platform.client.get_job(job)
    safe = progress_of(run_storage(config)).step
    assert (left.state, left.committed_step, _reached(config)) == (JobState.QUEUED, safe, safe)
    assert platform.runs(job) == [JobStatus.STOPPED]

    platform.add("shed-2")
    platform.until(lambda: _reached(config) > safe, "a step of the second run")
    engines = platform.engines()
    platform.client.cancel(job)
    platform.until(lambda: JobStatus.RUNNING not in platform.runs(job), "the end of the run on Ray")
    assert platform.runs(job) == [JobStatus.STOPPED] * 2
    assert platform.client.get_job(job).state is JobState.CANCELED
    assert {step for _, _, step in traced(config)} == {progress_of(run_storage(config)).step}
    proof = proof_of(config)
    assert (proof.repeated, proof.undone, proof.attempts) == (0, 0, 2)
    assert proof.trained_once > 0
    platform.until(lambda: not cluster.at_work(), "the end of what Ray had at work")
    assert not _processes_of(config)
    assert platform.engines() == engines, "the node's engine goes on"


def _reached(config: PretrainConfig) -> int:
    return max((step for _, _, step in traced(config)), default=0)


def _processes_of(config: PretrainConfig) -> dict[int, str]:
    """Whatever has the run's configuration among its words."""
    found = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and int(directory.name) != os.getpid():
            try:
                line = (directory / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if config.storage in line and "giornata.pretrain.run" in line:
                found[int(directory.name)] = line
    return found


def test_a_node_is_killed_and_another_follows_the_run_to_its_end(
    platform: ServerBesideCluster, tmp_path: Path
) -> None:
    config = small_run(tmp_path, validation_prompts=("a square",))
    first, second = config.phases
    config = replace(config, phases=(replace(first, samples=LONG), second), evaluate=Evaluate(checkpoints=5))
    node = platform.add("shed-1")
    job = platform.submit(config)
    platform.until(lambda: progress_of(run_storage(config)).step, "a checkpoint")
    with halted([pid for _, pid, _ in traced(config)]):  # nobody knows how long another node takes to start
        node.kill()
        node.wait()
        platform.until(lambda: not platform.engines(), "the end of the killed node's engine")
        platform.add("shed-2")
        platform.until(lambda: _says(platform, job, "the run is under way on Ray"), "the second node to find the run")
    done = platform.client.wait(job, timeout_s=PATIENCE_S, poll_s=0.5)

    assert done.state is JobState.SUCCEEDED, done.error
    assert platform.runs(job) == [JobStatus.SUCCEEDED], "it was begun once"
    assert [(each.machine_id, each.reason) for each in done.attempts] == [
        ("shed-1", Reason.LEASE_EXPIRED),
        ("shed-2", Reason.SUCCEEDED),
    ]
    proof = proof_of(config)
    assert (proof.finished, proof.repeated, proof.missed, proof.attempts) == (True, 0, 0, 1)
    assert proof.trained_once + proof.unreadable == proof.planned == LONG + second.samples
    assert done.step == done.committed_step == proof.steps == done.total_steps
    assert {point.step for point in platform.client.metrics(job)} == set(range(1, proof.steps + 1))
    results = {file.name: file for file in platform.client.download(job, tmp_path / "results")}
    assert json.loads(results.pop("report.json").read_text())["trained_once"] == proof.trained_once
    drawn = {f"samples-{step:08d}.png": name for step, _, name in kept_evaluations(run_storage(config))}
    assert f"samples-{proof.steps:08d}.png" in drawn
    assert {name: file.read_bytes() for name, file in results.items()} == {
        sheet: samples_of(run_storage(config), name) for sheet, name in drawn.items()
    }


def _says(platform: ServerBesideCluster, job: str, words: str) -> bool:
    return any(words in line.line for line in platform.client.logs(job))
