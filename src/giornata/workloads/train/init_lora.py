"""The adapter that a job starts from, as a file among its inputs."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from giornata.diffusion.adapted_layers import lean_shapes, why_not_lean
from giornata.diffusion.adapter_start import WHERE, check_start, start_from
from giornata.diffusion.lora import Adapters, add_adapters
from giornata.diffusion.models import BaseModel
from giornata.domain.errors import Fault, InvalidInput, WorkloadFailed, in_short
from giornata.domain.reasons import Reason
from giornata.protocol.pipe import InputFile, Start
from giornata.protocol.specs import TrainSpec

ROLE = "init_lora"


def starts_from_file(spec: TrainSpec, start: Start) -> bool:
    """Whether the attempt reads the file: a resume has in its checkpoint what became of it."""
    return spec.init_lora is not None and start.resume is None


def load_init_lora(base: BaseModel, spec: TrainSpec, inputs: Iterable[InputFile], adapters: Adapters) -> None:
    """Begin with the weights of the file that the spec names. Raises WorkloadFailed(BAD_DATA) with every fault."""
    with _bad_data():
        start_from(_path(spec, inputs), base, spec, adapters)


def check_init_lora(base: BaseModel, spec: TrainSpec, inputs: Iterable[InputFile]) -> None:
    """The same for nothing but its faults, before hours are spent on caching. The base is left as it was; others may
    be training on it, if the job could share their batch."""
    if why_not_lean(base, spec):
        with add_adapters(base, spec) as adapters:
            load_init_lora(base, spec, inputs, adapters)
        return
    with _bad_data():
        check_start(_path(spec, inputs), base, lean_shapes(base, spec))


@contextmanager
def _bad_data() -> Iterator[None]:
    try:
        yield
    except InvalidInput as error:
        raise WorkloadFailed(Reason.BAD_DATA, in_short(error.faults), tuple(error.faults)) from error


def _path(spec: TrainSpec, inputs: Iterable[InputFile]) -> Path:
    found = [file for file in inputs if file.role == ROLE and file.sha256 == spec.init_lora]
    if not found:
        hint = "upload it, and name its sha256"
        raise InvalidInput([Fault(where=WHERE, message="is not among the job's inputs", hint=hint)])
    return found[0].path
