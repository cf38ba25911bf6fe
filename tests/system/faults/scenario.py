"""One job of kind x-gate: where its engine stops, and what it has to be in the end."""

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from tests.system.conftest import until

from giornata.domain.jobs.job import TERMINAL, JobState
from giornata.protocol.jobs import Job

if TYPE_CHECKING:
    from tests.system.faults.rig import Rig

KIND = "x-gate"
STEPS, CADENCE = 30, 10


class GatedJob:
    """One job of kind x-gate and the gates on its way."""

    def __init__(self, rig: "Rig", folder: Path) -> None:
        self.rig, self.salt = rig, secrets.token_hex(4)
        self.gates = folder / "gates"
        self.gates.mkdir(parents=True)
        self.trace = folder / "trace"
        self.job_id = ""
        self.result_bytes = 0

    def stop_at(self, gate: str, act: str = "wait") -> None:
        """Have the engine stop, or misbehave, at that gate."""
        aside = self.gates / f".{gate}"
        aside.write_text(act)
        aside.rename(self.gates / f"{gate}.stop")

    def is_at(self, gate: str) -> bool:
        """Whether an engine has come to the gate."""
        return (self.gates / f"{gate}.here").exists()

    def forget(self, gate: str) -> None:
        """Whoever stands at the gate does not count: the next to be waited for is another engine."""
        (self.gates / f"{gate}.here").unlink()

    def await_gate(self, gate: str) -> None:
        """Wait until an engine has come to the gate."""
        until(lambda: self.is_at(gate), lambda: f"the engine at {gate}\n{self.rig.story(self.job_id)}")

    def open(self, *gates: str) -> None:
        """Let the engine go on; all gates when none is named."""
        for gate in gates or [each.stem for each in self.gates.glob("*.stop")]:
            (self.gates / f"{gate}.stop").unlink(missing_ok=True)

    def submit(self, **more: Any) -> str:
        """The job's id."""
        spec = {"steps": STEPS, "every": CADENCE, "salt": self.salt}
        spec |= {"gates": str(self.gates), "trace": str(self.trace), **more}
        self.result_bytes = more.get("result_bytes", 0)
        self.job_id = self.rig.client.submit(spec, kind=KIND).id
        return self.job_id

    def run_to(self, gate: str, **more: Any) -> None:
        """Submit, and wait until the engine stands at a gate behind step 10, whose checkpoint is safe."""
        self.stop_at("written-10")
        self.stop_at(gate)
        self.submit(**more)
        self.await_gate("written-10")
        self.await_committed(10)
        self.open("written-10")
        self.await_gate(gate)

    def await_committed(self, step: int) -> None:
        """Wait until the checkpoint of that step is safe."""
        client = self.rig.client
        until(
            lambda: client.get_job(self.job_id).committed_step >= step,
            lambda: f"step {step} to be safe\n{self.rig.story(self.job_id)}",
        )

    def finish(self, *, cadences: int = 1) -> Job:
        """Wait for the end; the job has to be what it would have been without any trouble.

        Each interruption may have cost the steps of so many `cadences`.
        """
        until(self._has_ended, lambda: f"the end of the job\n{self.rig.story(self.job_id)}")
        done = self.rig.client.get_job(self.job_id)
        assert done.state is JobState.SUCCEEDED, self.rig.story(self.job_id)
        with httpx.Client() as http:
            (artifact,) = self.rig.client.artifacts(self.job_id)
            content = http.get(artifact.request.url).content
        assert content.decode() == counted(STEPS, self.salt).ljust(self.result_bytes, "~")
        assert done.step == done.committed_step == STEPS
        assert all(each.ended_at is not None for each in done.attempts), self.rig.story(self.job_id)
        assert self.repeated() <= cadences * CADENCE * (len(done.attempts) - 1), self.rig.story(self.job_id)
        return done

    def _has_ended(self) -> bool:
        return self.rig.client.get_job(self.job_id).state in TERMINAL

    def safe(self) -> list[tuple[int, int, str]]:
        """Step, attempt and sha256 of each checkpoint."""
        return [(each.step, each.attempt, each.sha256) for each in self.rig.client.checkpoints(self.job_id)]

    def repeated(self) -> int:
        """Steps that were counted more than once."""
        steps = [int(line.split()[1]) for line in self.trace.read_text().splitlines()]
        assert set(steps) == set(range(1, STEPS + 1))
        return len(steps) - STEPS


def counted(steps: int, salt: str) -> str:
    """What the engine writes when it neither missed a number nor counted one twice."""
    total = 0
    for step in range(1, steps + 1):
        total = (total * 31 + step) % 2**61
    return f"{steps} {total} {salt}\n"
