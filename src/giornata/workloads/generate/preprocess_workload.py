"""The `preprocess` kind: annotations by models, one after the other. It holds up no drawing, and loads no
diffusers."""

from pathlib import Path

import torch

from giornata.diffusion.files.picture_file import ENDINGS, MEDIA_TYPES, picture_bytes
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.generation.awaited_annotations import MODEL_BASES
from giornata.protocol.generation.preprocess import AnnotationParams
from giornata.protocol.node.pictures import LeasedPicture, PictureFlag
from giornata.protocol.node.pipe import Start
from giornata.workloads.generate.annotation_drawing import AnnotationDrawing
from giornata.workloads.generate.control_pictures import ControlPictures
from giornata.workloads.generate.lease_work import LeaseWork, params_of
from giornata.workloads.interface import AgentRequest, Outcome, Reporter, Stopped
from giornata.workloads.train.faults import blamed, reason_of


class PreprocessWorkload:
    """Annotates the pictures of one lease at a time; see workloads.interface.Workload. Models stay warm."""

    def __init__(
        self,
        *,
        device: torch.device | str | None = None,
        model_cache_bytes: int | None = None,
        control_pictures: ControlPictures | None = None,
    ) -> None:
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._annotated = control_pictures or ControlPictures(chosen, model_cache_bytes=model_cache_bytes)

    def held(self) -> tuple[str, ...]:
        """Return the base keys of the annotators whose models are warm."""
        warm = set(self._annotated.warm())
        return tuple(key for key, name in MODEL_BASES.items() if name in warm)

    def run(self, start: Start, reporter: Reporter) -> Outcome:
        """Annotate the pictures of one lease. Raises Stopped when the agent wants the lease back."""
        lease = LeaseWork.of(start, reporter)
        reporter.phase("annotating", 0, lease.total)
        with blamed():
            while lease.waiting:
                if reporter.agent_request() in {AgentRequest.STOP, AgentRequest.CHECKPOINT_AND_STOP}:
                    raise Stopped
                lease.drop(reporter.dropped_pictures())
                if lease.waiting:
                    self._annotate(lease, lease.waiting.popleft())
        return lease.outcome()

    def _annotate(self, lease: LeaseWork, picture: LeasedPicture) -> None:
        """Make one annotation, or report why it cannot be made here. Raises what breaks the engine for all."""
        lease.open += 1
        try:
            path, media_type = self._written(lease, picture)
        except Exception as error:
            reason = error.reason if isinstance(error, WorkloadFailed) else reason_of(error) or Reason.CRASHED
            if reason in {Reason.NODE_DRIVER, Reason.NODE_DISK}:
                raise
            lease.told_failed(picture, reason, str(error) or type(error).__name__)
            if reason is Reason.NODE_VRAM:
                self._annotated.drop()
        else:
            lease.told_drawn(picture, path, media_type, PictureFlag.NOTHING)

    def _written(self, lease: LeaseWork, picture: LeasedPicture) -> tuple[Path, str]:
        params = params_of(picture)
        if not isinstance(params, AnnotationParams):
            raise WorkloadFailed(Reason.BAD_SPEC, "the picture is to be drawn, and this node only annotates")

        def told() -> None:
            lease.reporter.phase("loading")

        drawing = AnnotationDrawing(params, annotated=self._annotated, files=lease.files, told=told)
        lease.reporter.phase("annotating", lease.drawn + lease.failed, lease.total)
        path = lease.start.directory / f"{picture.order_id}-{picture.number}{ENDINGS[params.image_format]}"
        aside = path.with_name(f".{path.name}")  # no reader sees half of a file
        aside.write_bytes(picture_bytes(drawing.image(), params, made_with={}))
        aside.rename(path)
        return path, MEDIA_TYPES[params.image_format]
