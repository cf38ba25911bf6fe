"""What the demo does, step by step."""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from giornata.cli.demo_board import Board
from giornata.cli.demo_installation import Installation, kill_node
from giornata.cli.demo_learned import Learned, read_learned
from giornata.cli.demo_plan import CLASS_PICTURES, EXAMINED, KILLS, OLD_PROMPTS, PICTURES, SUBJECTS, TIMEOUT_S, Plan
from giornata.cli.demo_report import Outcome
from giornata.cli.demo_scene import Scene, Victim, find_victim, interruptions, live_nodes, reached
from giornata.cli.tools.model import run_model_code
from giornata.domain.errors import GiornataError
from giornata.domain.job import TERMINAL, JobState
from giornata.protocol.jobs import Job
from giornata.protocol.training.file_names import lora_file

POLL_S = 0.25
AGAIN = "-again"
GUIDANCE = 2.0
TITLE = "Giornata demo"
AT_A_TIME = 2


Program = tuple[str, list[str]]
"""A module with model code, and its arguments."""


@dataclass(slots=True, kw_only=True)
class Story:
    """One telling. `plan` says how much of everything; `board` is told what happens."""

    plan: Plan
    board: Board
    run: Callable[[Sequence[Program]], None]
    monotonic_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _datasets: dict[str, str] = field(default_factory=dict)
    _class_dataset: str = ""
    _jobs: list[str] = field(default_factory=list)
    _victims: list[Victim] = field(default_factory=list)
    _reference: str | None = None

    def tell(self, ready: Callable[[], Installation]) -> Outcome:
        """Everything, in order. Raises GiornataError when it cannot go on."""
        began_s = self.monotonic_s()
        self._draw_and_build()
        self.board.stage("waiting for the server and its nodes")
        here = ready()
        self._submit(here)
        *jobs, reference = self._train(here)
        self.board.stage("downloading every result; drawing and scoring with base model and LoRAs")
        hashes = {job.id: self._download(here, job) for job in (*jobs, reference)}
        learned = self._examine_and_paint(jobs)
        repeated = self._victims[0].job
        return Outcome(
            jobs=jobs,
            reference=reference,
            repeated=repeated.name,
            killed=[victim.job.id for victim in self._victims],
            interruptions={job.id: interruptions(list(here.client.events(job.id))) for job in (*jobs, reference)},
            hashes=hashes[repeated.id],
            reference_hashes=hashes[reference.id],
            grid=self.plan.grid,
            learned=learned,
            seconds=self.monotonic_s() - began_s,
        )

    def _draw_and_build(self) -> None:
        plan = self.plan
        self.board.stage("fetching the model and drawing pictures, while the server starts")
        drawings = [
            ("giornata.diffusion.drawings", [subject, str(plan.pictures(subject)), "--count", str(PICTURES)])
            for subject in plan.subjects
        ]
        known = ("giornata.diffusion.shapes.pictures", [str(plan.class_pictures), "--count", str(CLASS_PICTURES)])
        self.run([("giornata.diffusion.shapes.shipped", [str(plan.model)]), *drawings, known])
        self.board.note(
            f"a small SDXL that draws shapes; {PICTURES} pictures of each of {len(plan.subjects)} subjects, "
            f"{CLASS_PICTURES} of shapes that it is to keep"
        )

    def _submit(self, here: Installation) -> None:
        self.board.note("giornata up is running, with a server and two nodes")
        self.board.stage("checking and uploading the pictures")
        self._class_dataset = here.client.dataset_from_folder(self.plan.class_pictures).id
        for subject in self.plan.subjects:
            dataset = here.client.dataset_from_folder(self.plan.pictures(subject), SUBJECTS[subject])
            self._datasets[subject] = dataset.id
            self._jobs.append(self._ask_for(here, subject, name=subject).id)
        self.board.note(f"submitted {len(self._jobs)} training jobs of {self.plan.steps} steps each")

    def _ask_for(self, here: Installation, subject: str, *, name: str) -> Job:
        return here.client.submit(self.plan.spec(subject, self._datasets[subject], self._class_dataset), name=name)

    def _train(self, here: Installation) -> tuple[Job, ...]:
        """Until every job has ended. Nodes are killed on the way, and then a killed job is asked for once more."""
        deadline_s = self.monotonic_s() + TIMEOUT_S
        while True:
            here.check()
            scene = self._look(here)
            self.board.show(scene)
            ended = all(job.state in TERMINAL for job in scene.jobs)
            if ended and self._reference in {job.id for job in scene.jobs}:
                return scene.jobs
            if len(self._victims) < KILLS:
                if ended:
                    raise GiornataError(
                        "the jobs ended before nodes could be killed in the middle: give more --steps"
                    )
                self._perhaps_kill(scene)
            elif self._reference is None:
                self._repeat_without_interruption(here)
            if self.monotonic_s() > deadline_s:
                raise GiornataError(f"the jobs were not done after {TIMEOUT_S:g} s")
            self.sleep(POLL_S)

    def _look(self, here: Installation) -> Scene:
        killed = {victim.node.id: victim.node for victim in self._victims}
        nodes = live_nodes(tuple(here.client.nodes()), killed)
        present = {node.name for node in nodes}
        return Scene(
            jobs=tuple(here.client.get_job(job_id) for job_id in self._jobs),
            nodes=nodes,
            lost=tuple(node for node in killed.values() if node.name not in present),
        )

    def _perhaps_kill(self, scene: Scene) -> None:
        which = "another node, once that job goes on," if self._victims else "a node"
        self.board.stage(f"training; {which} will be killed in the middle of a job")
        victim = find_victim(scene, {earlier.job.id for earlier in self._victims})
        if victim is None:
            return
        node, job, committed = victim.node, victim.job, victim.attempt.committed_step
        kill_node(node)
        self._victims.append(victim)
        self.board.note(
            f"⚡ kill -9 {node.pid} {node.engine_pid}: {node.name} is gone, "
            f"{job.name} was at step {reached(job)}, {committed} safe"
        )

    def _repeat_without_interruption(self, here: Installation) -> None:
        subject = self._victims[0].job.name
        job = self._ask_for(here, subject, name=subject + AGAIN)
        self._reference = job.id
        self._jobs.append(job.id)
        self.board.note(f"submitted {subject} once more, same spec and seed, not to be interrupted")
        self.board.stage("training to the end")

    def _download(self, here: Installation, job: Job) -> dict[str, str]:
        """sha256 of each file, computed from what lies on the disk."""
        if job.state is not JobState.SUCCEEDED:
            return {}
        files = here.client.download(job.id, self.plan.loras(job.name))
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    def _examine_and_paint(self, jobs: Sequence[Job]) -> dict[str, Learned]:
        """The sheet of pictures, and what each LoRA has learned and kept."""
        names = [job.name for job in jobs if job.state is JobState.SUCCEEDED]
        if not names:
            return {}
        plan = self.plan
        rows = {
            name: f"--row={name}={plan.loras(name) / lora_file('diffusers', name)}:{SUBJECTS[name]}" for name in names
        }
        pictures = [f"--pictures={name}={plan.pictures(name)}" for name in names]
        sheet = ["--out", str(plan.grid), "--guidance", str(GUIDANCE), "--title", TITLE]
        also = [f"--also={prompt}" for prompt in OLD_PROMPTS]
        model = ["--model", str(plan.model)]
        score = ["--out", str(plan.learned), "--count", str(EXAMINED)]
        self.run(
            [
                ("giornata.diffusion.shapes.learned", [*model, *rows.values(), *score]),
                ("giornata.diffusion.grid", [*model, *rows.values(), *pictures, *also, *sheet]),
            ]
        )
        return read_learned(json.loads(plan.learned.read_text()))


def run_all(programs: Sequence[Program]) -> None:
    """Run model code, two programs at a time. Raises what run_model_code does."""
    with ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="model-code") as pool:
        started = [pool.submit(run_model_code, module, arguments) for module, arguments in programs]
        try:
            for done in started:
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
