"""The batch of an engine: rows of several leases, which join and leave at every evaluation of the UNet.

Rows of one model and one size share a forward pass. When memory runs out the pass is made again in halves, and the
batch stays that small; a row that does not fit alone fails, and the process goes on.
"""

import gc
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from giornata.diffusion.draws.determinism import fingerprint
from giornata.diffusion.files.picture_file import MEDIA_TYPES
from giornata.diffusion.sampling.denoising import Denoiser
from giornata.domain.errors import InvalidInput, WorkloadFailed
from giornata.domain.jobs.reasons import BLAME, Blame, Reason
from giornata.protocol.generation.picture import PictureParams
from giornata.protocol.generation.preprocess import AnnotationParams
from giornata.protocol.node.pictures import LeasedPicture, PictureFlag
from giornata.workloads.generate.annotation_drawing import AnnotationDrawing
from giornata.workloads.generate.lease_work import LeaseWork, params_of
from giornata.workloads.generate.picture_drawing import PictureDrawing
from giornata.workloads.generate.result_writer import ResultWriter, Written
from giornata.workloads.generate.warm_models import WarmModels
from giornata.workloads.interface import AgentRequest, BatchSession, Clock, Outcome, Stopped
from giornata.workloads.train.faults import reason_of

DRAIN_S = 10.0
"""A lease that has to stop soon lets those rows end that need no longer than this."""
WRITTEN_WAIT_S = 0.2


@dataclass(slots=True, kw_only=True, eq=False)
class PictureInBatch:
    """A picture that is drawn or written, and the lease that it is of."""

    lease: LeaseWork
    picture: LeasedPicture
    drawing: PictureDrawing | AnnotationDrawing
    flags: PictureFlag = PictureFlag.NOTHING
    compiler: str | None = None
    """The compiler whose kernels made at least one pass of the picture."""

    @property
    def key(self) -> tuple[str, int]:
        """Return the picture's order and number."""
        return self.picture.order_id, self.picture.number

    @property
    def denoised(self) -> PictureDrawing:
        """Return the drawing of a picture that needs passes. Raises TypeError for an annotation."""
        if not isinstance(self.drawing, PictureDrawing):
            raise TypeError("an annotation has no passes")
        return self.drawing


class PictureBatch:
    """Draws the pictures of leases that share a base, up to `places` leases and `rows` rows at a time."""

    def __init__(self, models: WarmModels, *, places: int, rows: int, clock: Clock, drain_s: float = DRAIN_S) -> None:
        self._models, self._places, self._most_rows, self._clock = models, places, rows, clock
        self._drain_s = drain_s
        self._leases: list[LeaseWork] = []
        self._rows: list[PictureInBatch] = []
        self._denoisers: dict[tuple[int, torch.Size], Denoiser] = {}
        self._evaluation_s = 0.0

    def run(self, session: BatchSession) -> None:
        """Draw until the session has no leases left. Raises what broke the batch for all, if something did."""
        made_with = {name: str(value) for name, value in fingerprint(self._models.device).items()}
        with ResultWriter[PictureInBatch](made_with) as writer:
            self._admit(session)
            while self._leases:
                self._heed(session)
                self._fill()
                if self._rows and not writer.is_full:
                    self._evaluate(writer)
                for written in writer.written(wait_s=None if self._rows and not writer.is_full else WRITTEN_WAIT_S):
                    self._hand_over(written, writer)
                self._settle(session)
                self._admit(session)

    # ---- leases come and go

    def _admit(self, session: BatchSession) -> None:
        while len(self._leases) < self._places and (entry := session.next()) is not None:
            start, reporter = entry
            try:
                lease = LeaseWork.of(start, reporter)
                self._load(lease)
            except WorkloadFailed as error:
                session.ended(start, error)
            else:
                self._leases.append(lease)

    def _load(self, lease: LeaseWork) -> None:
        """Load the base of a lease, which all its pictures share. A base that no node can load fails them all, and
        one that this node cannot load ends the lease.
        """
        reporter = lease.reporter
        reporter.phase("loading")
        try:
            params = params_of(lease.waiting[0])
        except WorkloadFailed:
            return  # the picture says so itself when it begins
        try:
            if isinstance(params, PictureParams):
                self._models.main(params, lease.files, lambda: reporter.phase("loading"))
        except WorkloadFailed as error:
            if BLAME[error.reason] is not Blame.JOB:
                raise
            lease.fail_waiting(error)
        reporter.phase("drawing", 0, lease.total)

    def _heed(self, session: BatchSession) -> None:
        """Do what agents ask: stop, stop soon, or drop single pictures."""
        for lease in list(self._leases):
            agent_request, dropped = lease.reporter.agent_request(), lease.reporter.dropped_pictures()
            rows = [each for each in self._rows if each.lease is lease]
            if agent_request is AgentRequest.STOP:
                self._leave(rows)
                self._leases.remove(lease)
                session.ended(lease.start, Stopped())
                continue
            if agent_request is AgentRequest.CHECKPOINT_AND_STOP and not lease.closing:
                lease.close()
                self._leave([each for each in rows if not self._ends_soon(each)])
            if dropped:
                lease.drop(dropped)
                self._leave([each for each in rows if each.key in dropped])

    def _ends_soon(self, each: PictureInBatch) -> bool:
        return each.drawing.evaluations_left() * self._evaluation_s <= self._drain_s

    def _leave(self, rows: Sequence[PictureInBatch]) -> None:
        """Take rows out of the batch without a report of their pictures."""
        for each in rows:
            if each in self._rows:
                self._rows.remove(each)
                each.lease.open -= 1

    def _settle(self, session: BatchSession) -> None:
        for lease in [lease for lease in self._leases if lease.is_over]:
            self._leases.remove(lease)
            end: Outcome | Exception = Stopped() if lease.closing else lease.outcome()
            session.ended(lease.start, end)

    # ---- rows

    def _fill(self) -> None:
        """Begin pictures while there is room, in the order in which their leases came."""
        for lease in self._leases:
            while lease.waiting and len(self._rows) < self._most_rows:
                picture = lease.waiting.popleft()
                lease.open += 1
                try:
                    drawing = self._begun(lease, picture)
                except Exception as error:  # noqa: BLE001 - the supervisor of this picture: the others go on
                    self._fail(lease, picture, error)
                else:
                    self._rows.append(PictureInBatch(lease=lease, picture=picture, drawing=drawing))

    def _begun(self, lease: LeaseWork, picture: LeasedPicture) -> PictureDrawing | AnnotationDrawing:
        def told() -> None:
            lease.reporter.phase("loading")

        params = params_of(picture)
        if isinstance(params, AnnotationParams):
            annotated = self._models.control_pictures
            return AnnotationDrawing(params, annotated=annotated, files=lease.files, told=told)
        return PictureDrawing(params, models=self._models, files=lease.files, told=told, safety=picture.safety)

    def _evaluate(self, writer: ResultWriter[PictureInBatch]) -> None:
        """Make one evaluation of every row; finished rows leave."""
        began_s = self._clock()
        groups: dict[tuple[int, torch.Size], list[PictureInBatch]] = defaultdict(list)
        for each in self._rows:
            if each.drawing.is_done:
                continue  # a pass may have nothing to do: a refiner that takes over at the very end
            groups[id(each.denoised.model), each.denoised.row.latents_1CHW.shape].append(each)
        self._denoisers = {key: self._denoisers.get(key) or _denoiser(rows) for key, rows in groups.items()}
        for key, rows in groups.items():
            for some in _slices(rows, self._most_rows):
                self._move(self._denoisers[key], some)
        self._evaluation_s = self._clock() - began_s
        for each in [each for each in self._rows if each.drawing.is_done]:
            self._finish(each, writer)

    def _move(self, denoiser: Denoiser, rows: Sequence[PictureInBatch]) -> None:
        """Make one evaluation of these rows, in halves when memory does not suffice."""
        try:
            rows[0].denoised.model.show([lora for each in rows for lora in each.denoised.loras])
            predicted = denoiser.predict([each.denoised.row for each in rows])
        except RuntimeError as error:
            if reason_of(error) is not Reason.NODE_VRAM:
                raise
            said = str(error)
        else:
            for each, noise_1CHW in zip(rows, predicted, strict=True):
                each.denoised.row.advance(noise_1CHW)
                each.compiler = denoiser.compiler or each.compiler
            _log_kernels(rows[0])
            return
        # Outside of the except clause: the traceback's frames held the activations.
        denoiser.forget()
        _free_memory()
        if len(rows) == 1:
            self._rows.remove(rows[0])
            message = f"one picture alone is too large for this device: {said}"
            rows[0].lease.told_failed(rows[0].picture, Reason.NODE_VRAM, message)
            return
        self._most_rows = min(self._most_rows, len(rows) // 2)
        for each in rows:
            each.flags |= PictureFlag.OUT_OF_MEMORY_ONCE
        for some in _slices(rows, self._most_rows):
            self._move(denoiser, some)

    def _finish(self, each: PictureInBatch, writer: ResultWriter[PictureInBatch]) -> None:
        """Begin the next pass of a picture, or let it be written."""
        try:
            if each.drawing.go_on():
                return
        except Exception as error:  # noqa: BLE001 - as above
            self._rows.remove(each)
            self._fail(each.lease, each.picture, error)
            return
        self._rows.remove(each)
        _write(each, writer)

    def _hand_over(self, written: Written[PictureInBatch], writer: ResultWriter[PictureInBatch]) -> None:
        each, error = written.what, written.error
        if each.lease not in self._leases:
            return  # its lease was stopped meanwhile
        if error is None:
            media_type = MEDIA_TYPES[each.drawing.params.image_format]
            each.lease.told_drawn(each.picture, written.path, media_type, each.flags | each.drawing.flags)
        elif reason_of(error) is Reason.NODE_VRAM and PictureFlag.OUT_OF_MEMORY_ONCE not in each.flags:
            each.flags |= PictureFlag.OUT_OF_MEMORY_ONCE
            _free_memory()
            _write(each, writer)
        else:
            self._fail(each.lease, each.picture, error)

    def _fail(self, lease: LeaseWork, picture: LeasedPicture, error: Exception) -> None:
        """Report what keeps one picture from being drawn. Raises what breaks the batch for all."""
        match error:
            case InvalidInput():
                reason = Reason.BAD_SPEC
            case WorkloadFailed():
                reason = error.reason
            case _:
                reason = reason_of(error) or Reason.CRASHED
        if reason in {Reason.NODE_DRIVER, Reason.NODE_DISK}:
            raise error
        if reason is Reason.NODE_VRAM:
            _free_memory()
        lease.told_failed(picture, reason, str(error) or type(error).__name__)


def _write(each: PictureInBatch, writer: ResultWriter[PictureInBatch]) -> None:
    stem = each.lease.start.directory / f"{each.picture.order_id}-{each.picture.number}"
    weights = each.drawing.weights if isinstance(each.drawing, PictureDrawing) else {}
    made_with = {f"weights of {place}": digest for place, digest in weights.items()}
    made_with |= {} if each.compiler is None else {"compile": each.compiler}
    writer.write(each, each.drawing.image, each.drawing.params, stem, made_with=made_with)


def _log_kernels(each: PictureInBatch) -> None:
    """Log what the compiled passes of the picture's model have to say."""
    kernels = each.denoised.model.kernels
    while kernels is not None and kernels.said:
        each.lease.reporter.log(kernels.said.popleft())


def _slices(rows: Sequence[PictureInBatch], most: int) -> list[Sequence[PictureInBatch]]:
    return [rows[first : first + most] for first in range(0, len(rows), most)]


def _denoiser(rows: Sequence[PictureInBatch]) -> Denoiser:
    model = rows[0].denoised.model
    return Denoiser(model.base.unet, loras=model.adapters, kernels=model.kernels)


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
