"""Draws the sample images of a training job after a step, from its checkpoint, on a node that does not train it.

Weights, modules and noise are those of the training process, so that the sheet has the bytes that this process
draws on equal hardware and versions.
"""

from dataclasses import dataclass

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.files.checkpoint import Header, base_faults, read_header, refuse
from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import ResumePoint, Start
from giornata.protocol.specs import CHECKPOINT_ROLE, ValidateSpec
from giornata.protocol.training.file_names import sheet_file
from giornata.workloads.interface import AgentRequest, Clock, Outcome, Reporter, Stopped
from giornata.workloads.train.attach_adapter import attach_adapter
from giornata.workloads.train.results.checkpoint_writer import CheckpointWriter
from giornata.workloads.train.results.fleet_sheets import FleetSheets, sheet_key
from giornata.workloads.train.results.sampling import SampleRenderer, TrackedSheets


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """One attempt at the sheet of one step. `base` knows the job's new tokens."""

    start: Start
    spec: ValidateSpec
    base: BaseModel
    base_sha256: str
    reporter: Reporter
    clock: Clock

    def run(self) -> Outcome:
        """Draw the sheet and hand it over. Raises Stopped or WorkloadFailed."""
        checkpoint = self._checkpoint()
        header = read_header(checkpoint.path)
        refuse(checkpoint.path, base_faults(header, self.base_sha256), Reason.CRASHED)
        resumed, training = self.start.model_copy(update={"resume": checkpoint}), self.spec.training
        with (
            attach_adapter(self.base, training, resumed) as (adapters, optimizer),
            self._checkpoints(header) as checkpoints,
        ):
            checkpoints.restore(checkpoint.path, checkpoint.step, adapters, optimizer)
            renderer = SampleRenderer(
                base=self.base,
                spec=training,
                adapters=adapters,
                directory=self.start.directory,
                reporter=self.reporter,
            )
            while (agent_request := renderer.after(self.spec.step, optimizer.result())) is not AgentRequest.GO_ON:
                if agent_request is not AgentRequest.CHECKPOINT:
                    raise Stopped
        name = sheet_file(self.spec.step, training.output_name)
        if not (self.start.directory / name).exists():
            # Another machine may have more memory. The notice says what it was.
            raise WorkloadFailed(Reason.CRASHED, f"{name} could not be drawn")
        self._to_trackers(renderer)
        return Outcome(step=self.spec.step, summary={"job": self.spec.job, "sheet": name})

    def _to_trackers(self, renderer: SampleRenderer) -> None:
        """Put the sheet that trackers show where the training process looks: it alone has the tracker's run."""
        fleet = FleetSheets(spec=self.spec.training, job=self.spec.job)
        tracked = TrackedSheets(base=self.base, spec=self.spec.training, album=renderer.album, fleet=fleet)
        if (png := tracked.png(self.spec.step)) is not None:
            path = self.start.directory / "tracked.png"
            path.write_bytes(png)
            self.reporter.cache_put(sheet_key(self.spec.job, self.spec.step), path)

    def _checkpoint(self) -> ResumePoint:
        """Return the checkpoint, which is a file of the job. Raises WorkloadFailed(BAD_DATA) when it is not there."""
        found = [file for file in self.start.inputs if file.role == CHECKPOINT_ROLE]
        if not found:
            fault = Fault(where=f"spec.{CHECKPOINT_ROLE}", message="is not among the job's files")
            raise WorkloadFailed(Reason.BAD_DATA, str(fault), (fault,))
        return ResumePoint(step=self.spec.step, path=found[0].path)

    def _checkpoints(self, header: Header) -> CheckpointWriter:
        """Return what reads the checkpoint. It writes none."""
        return CheckpointWriter(
            spec=self.spec.training,
            data_hash=header.data_sha256,
            base_sha256=self.base_sha256,
            history=header.history,
            directory=self.start.directory,
            reporter=self.reporter,
            clock=self.clock,
            announced=header.step,
            family=self.base.family,
        )
