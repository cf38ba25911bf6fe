"""Runs the demo: draw pictures, train, kill nodes, repeat one job undisturbed, download and score the results."""

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from examples.demo.display import Display
from examples.demo.report import DemoOutcome, Scores
from examples.demo.server import LocalServer, kill_node
from examples.demo.settings import (
    CLASS_PICTURES,
    KILLS,
    OLD_PROMPTS,
    PICTURES,
    SCORED_PICTURES,
    SUBJECTS,
    TIMEOUT_S,
    DemoSettings,
)
from examples.demo.snapshot import DemoSnapshot, KillTarget, find_target, interruptions, last_step, present_nodes
from giornata.domain.errors import GiornataError
from giornata.domain.jobs.job import TERMINAL, JobState
from giornata.protocol.jobs import Job
from giornata.protocol.training.file_names import lora_file

POLL_S = 0.25
GUIDANCE = 2.0
PROGRAMS_AT_ONCE = 2
ROOT = Path(__file__).parents[2]


@dataclass(slots=True, kw_only=True)
class DemoRun:
    """One run of the demo against a server on this machine."""

    settings: DemoSettings
    display: Display
    _class_dataset: str = ""
    _datasets: dict[str, str] = field(default_factory=dict)
    _jobs: list[str] = field(default_factory=list)
    _kills: list[KillTarget] = field(default_factory=list)
    _reference: str | None = None

    def run(self, ready: Callable[[], LocalServer]) -> DemoOutcome:
        """Run every stage in order. `ready` waits for the server. Raises GiornataError when a stage fails."""
        started_s = time.monotonic()
        self._draw_pictures()
        self.display.stage("waiting for the server and its nodes")
        server = ready()
        self._submit(server)
        *jobs, reference = self._train(server)
        self.display.stage("downloading every result; drawing and scoring with base model and LoRAs")
        hashes = {job.id: self._download(server, job) for job in (*jobs, reference)}
        repeated = self._kills[0].job
        return DemoOutcome(
            jobs=jobs,
            reference=reference,
            repeated=repeated.name,
            killed=[kill.job.id for kill in self._kills],
            interruptions={job.id: interruptions(list(server.client.events(job.id))) for job in (*jobs, reference)},
            hashes=hashes[repeated.id],
            reference_hashes=hashes[reference.id],
            grid=self.settings.grid,
            scores=self._score_and_draw(jobs),
            seconds=time.monotonic() - started_s,
        )

    def _draw_pictures(self) -> None:
        settings = self.settings
        self.display.stage("fetching the model and drawing pictures, while the server starts")
        run_modules(
            [
                ("giornata", "tiny-model", "--shapes", str(settings.model)),
                *(
                    (
                        "giornata.diffusion.tiny.drawings",
                        subject,
                        str(settings.pictures(subject)),
                        "--count",
                        str(PICTURES),
                    )
                    for subject in settings.subjects
                ),
                ("giornata.diffusion.shapes.pictures", str(settings.class_pictures), "--count", str(CLASS_PICTURES)),
            ]
        )
        self.display.note(
            f"a small SDXL that draws shapes; {PICTURES} pictures of each of {len(settings.subjects)} subjects, "
            f"{CLASS_PICTURES} of shapes that it is to keep"
        )

    def _submit(self, server: LocalServer) -> None:
        self.display.note("giornata up is running, with a server and two nodes")
        self.display.stage("checking and uploading the pictures")
        self._class_dataset = server.client.dataset_from_folder(self.settings.class_pictures).id
        for subject in self.settings.subjects:
            folder, prompt = self.settings.pictures(subject), SUBJECTS[subject]
            self._datasets[subject] = server.client.dataset_from_folder(folder, prompt).id
            self._submit_job(server, subject, name=subject)
        self.display.note(f"submitted {len(self._jobs)} training jobs of {self.settings.steps} steps each")

    def _submit_job(self, server: LocalServer, subject: str, *, name: str) -> str:
        spec = self.settings.spec(subject, self._datasets[subject], self._class_dataset)
        self._jobs.append(server.client.submit(spec, name=name).id)
        return self._jobs[-1]

    def _train(self, server: LocalServer) -> tuple[Job, ...]:
        """Wait until every job has ended. Meanwhile kill nodes, and then submit a killed job once more."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            server.check()
            snapshot = self._read_snapshot(server)
            self.display.show(snapshot)
            ended = all(job.state in TERMINAL for job in snapshot.jobs)
            if ended and self._reference in {job.id for job in snapshot.jobs}:
                return snapshot.jobs
            if len(self._kills) < KILLS:
                if ended:
                    raise GiornataError(
                        "the jobs ended before nodes could be killed in the middle: give more --steps"
                    )
                self._kill_if_possible(snapshot)
            elif self._reference is None:
                self._submit_reference(server)
            if time.monotonic() > deadline_s:
                raise GiornataError(f"the jobs were not done after {TIMEOUT_S:g} s")
            time.sleep(POLL_S)

    def _read_snapshot(self, server: LocalServer) -> DemoSnapshot:
        killed = {kill.node.id: kill.node for kill in self._kills}
        nodes = present_nodes(tuple(server.client.nodes()), killed)
        names = {node.name for node in nodes}
        return DemoSnapshot(
            jobs=tuple(server.client.get_job(job_id) for job_id in self._jobs),
            nodes=nodes,
            killed=tuple(node for node in killed.values() if node.name not in names),
        )

    def _kill_if_possible(self, snapshot: DemoSnapshot) -> None:
        which = "another node, once that job goes on," if self._kills else "a node"
        self.display.stage(f"training; {which} will be killed in the middle of a job")
        target = find_target(snapshot, {earlier.job.id for earlier in self._kills})
        if target is None:
            return
        node, job, committed = target.node, target.job, target.attempt.committed_step
        kill_node(node)
        self._kills.append(target)
        self.display.note(
            f"⚡ kill -9 {node.pid} {node.engine_pid}: {node.name} is gone, "
            f"{job.name} was at step {last_step(job)}, {committed} safe"
        )

    def _submit_reference(self, server: LocalServer) -> None:
        subject = self._kills[0].job.name
        self._reference = self._submit_job(server, subject, name=f"{subject}-again")
        self.display.note(f"submitted {subject} once more, same spec and seed, not to be interrupted")
        self.display.stage("training to the end")

    def _download(self, server: LocalServer, job: Job) -> dict[str, str]:
        """Download a job's files, and return the sha256 of each file on the disk by its name."""
        if job.state is not JobState.SUCCEEDED:
            return {}
        files = server.client.download(job.id, self.settings.loras(job.name))
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    def _score_and_draw(self, jobs: Sequence[Job]) -> Scores:
        """Write the sheet of pictures, and return the scores of each LoRA."""
        settings, names = self.settings, [job.name for job in jobs if job.state is JobState.SUCCEEDED]
        if not names:
            return {}
        loras = {name: settings.loras(name) / lora_file("diffusers", name) for name in names}
        rows = [f"--row={name}={path}:{SUBJECTS[name]}" for name, path in loras.items()]
        pictures = [f"--pictures={name}={settings.pictures(name)}" for name in names]
        also = [f"--also={prompt}" for prompt in OLD_PROMPTS]
        sheet = ["--out", str(settings.grid), "--guidance", str(GUIDANCE), "--title", "Giornata demo"]
        model = ["--model", str(settings.model)]
        score = ["--out", str(settings.scores), "--count", str(SCORED_PICTURES)]
        run_modules(
            [
                ("tools.tiny_shapes.learned", *model, *rows, *score),
                ("tools.lora_grid", *model, *rows, *pictures, *also, *sheet),
            ]
        )
        scores: Scores = json.loads(settings.scores.read_text())
        return scores


def run_modules(programs: Sequence[Sequence[str]]) -> None:
    """Run Python modules with their arguments, two at a time.

    Raises GiornataError with the last line of a module that failed.
    """
    with ThreadPoolExecutor(PROGRAMS_AT_ONCE) as pool:
        started = [pool.submit(_run_module, program) for program in programs]
        try:
            for each in started:
                each.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run_module(program: Sequence[str]) -> None:
    command = [sys.executable, "-m", *program]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise GiornataError(lines[-1] if lines else f"{program[0]} ended with status {done.returncode}")
