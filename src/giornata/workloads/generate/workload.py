"""The `generate` kind: pictures of leases, drawn in one batch on a base that stays warm between leases."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from giornata.diffusion.base.models import load_model
from giornata.diffusion.base.shared_weights import SharedWeights
from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.generation.annotators import ANNOTATORS
from giornata.protocol.generation.expand import batch_key_of
from giornata.protocol.generation.picture import PictureParams
from giornata.protocol.generation.preprocess import annotator_key
from giornata.protocol.node.pipe import Start
from giornata.workloads.generate.compiling import DrawingCompiler
from giornata.workloads.generate.control_pictures import ControlPictures
from giornata.workloads.generate.lease_work import leased_pictures, params_of
from giornata.workloads.generate.picture_batch import DRAIN_S, PictureBatch
from giornata.workloads.generate.safety_checks import SafetyChecks
from giornata.workloads.generate.warm_models import PLAIN, Loader, WarmModels
from giornata.workloads.interface import BatchSession, Clock, Outcome, Reporter
from giornata.workloads.train.faults import blamed

PLACES = 2
"""Leases at work at once: the next one fills the rows that the first one leaves."""
ROWS = 8
"""Rows in one pass at most. When memory runs out the batch makes them fewer."""


class GenerateWorkload:
    """Draws the pictures of leases; see workloads.interface.JointWorkload. `load` has the signature of
    giornata.diffusion.base.models.load_model, `clock` gives seconds that only ever grow,
    and the rest is as in WarmModels.

    Rows of several leases share the passes of the UNet. A lease's pictures are handed over one by one.
    """

    def __init__(
        self,
        *,
        device: torch.device | str | None = None,
        places: int = PLACES,
        rows: int = ROWS,
        clock: Clock = time.monotonic,
        load: Loader = load_model,
        model_cache_bytes: int | None = None,
        drain_s: float = DRAIN_S,
        control_pictures: ControlPictures | None = None,
        safety: SafetyChecks | None = None,
        shared_weights: SharedWeights | None = None,
        host_model_bytes: int = 0,
        compiler: DrawingCompiler = PLAIN,
    ) -> None:
        chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.places, self._rows, self._clock, self._drain_s = max(places, PLACES), rows, clock, drain_s
        self._models = WarmModels(
            torch.device(chosen),
            load=load,
            model_cache_bytes=model_cache_bytes,
            control_pictures=control_pictures,
            safety=safety,
            shared_weights=shared_weights,
            host_model_bytes=host_model_bytes,
            compiler=compiler,
        )

    def held(self) -> tuple[str, ...]:
        """Return the base key of the warm base, if there is one."""
        return self._models.keys()

    def files_in_host_memory(self) -> tuple[str, ...]:
        """Return the sha256 of each model file that need not be read again."""
        return self._models.files_in_host_memory()

    def joins(self, start: Start) -> str | None:
        """Return the batch key of the lease's pictures. None for a lease that is wrong: its own attempt says so."""
        try:
            params = params_of(leased_pictures(start)[0])
        except WorkloadFailed:
            return None
        if isinstance(params, PictureParams):
            return batch_key_of(params)
        return annotator_key(params) if params.annotator in ANNOTATORS else None

    def run(self, start: Start, reporter: Reporter) -> Outcome:
        """Draw the pictures of one lease alone. See workloads.interface.Workload."""
        alone = _Alone(start, reporter)
        self.run_many(alone)
        return alone.outcome()

    def run_many(self, session: BatchSession) -> None:
        """Draw the pictures of leases until the session has no more."""
        session.offer(self.places)
        batch = PictureBatch(
            self._models, places=self.places, rows=self._rows, clock=self._clock, drain_s=self._drain_s
        )
        with self._kept(), blamed():
            batch.run(session)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Keep the models warm, unless the end suggests that they are broken."""
        try:
            yield
        except WorkloadFailed as failure:
            if failure.reason not in {Reason.BAD_SPEC, Reason.BAD_DATA}:
                self._models.drop()
            raise
        except BaseException:
            self._models.drop()
            raise


class _Alone:
    """A session of one attempt."""

    def __init__(self, start: Start, reporter: Reporter) -> None:
        self._entry: tuple[Start, Reporter] | None = (start, reporter)
        self._end: Outcome | Exception | None = None

    def next(self) -> tuple[Start, Reporter] | None:
        entry, self._entry = self._entry, None
        return entry

    def ended(self, _start: Start, end: Outcome | Exception) -> None:
        self._end = end

    def offer(self, places: int) -> None:
        del places

    def outcome(self) -> Outcome:
        """Return how the attempt ended, or raise it."""
        if isinstance(self._end, Outcome):
            return self._end
        raise self._end or RuntimeError("the batch ended before its only lease")
