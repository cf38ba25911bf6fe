"""Attaches a job's adapter and optimizer to the base, for a job that trains alone."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from giornata.diffusion.adapter.adapter_plan import adapted_layers, lean_layers, lean_shapes, why_not_lean
from giornata.diffusion.adapter.lora import Adapters, add_adapters
from giornata.diffusion.adapter.slots import AdapterSlot, AdapterSlots
from giornata.diffusion.adapter.tokens import NewTokens, add_tokens
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.files.adapter_start import WHERE, check_start, start_from
from giornata.diffusion.optim.optimizer import JobOptimizer
from giornata.diffusion.optim.optimizer_kinds import KINDS
from giornata.diffusion.optim.slot_optimizer import FlatRows, SlotOptimizer
from giornata.domain.errors import Fault, InvalidInput, WorkloadFailed, in_short
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import InputFile, Start
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.steps import optimizer_of

LAYER = "lora_layer"
"""The fingerprint's entry: which code multiplies by A and B, LEAN, PEFT or BOTH. They round differently."""
LEAN, PEFT, BOTH = "slots", "peft", "slots and peft"
ROWS = "rows"
"""The fingerprint's entry of jobs whose optimizer works on rows, and did not in earlier versions: clipping sums in
another order."""


def lora_layer(base: BaseModel, spec: TrainSpec) -> str:
    """Return LEAN when the lean layer can carry every layer of the adapter, PEFT when none, otherwise BOTH. The base
    is bare yet."""
    lean = len(lean_layers(base, spec))
    if not lean:
        return PEFT
    return LEAN if lean == len(adapted_layers(base, spec)) else BOTH


def layer_entries(layer: str, spec: TrainSpec) -> dict[str, str]:
    """Return the fingerprint entries of a job whose `lora_layer` this is."""
    in_rows = KINDS[spec.optimizer].on_rows and (layer != LEAN or spec.train_text_encoder_ti)
    return {LAYER: layer} | ({ROWS: "all"} if in_rows else {})


@contextmanager
def attach_adapter(base: BaseModel, spec: TrainSpec, start: Start) -> Iterator[tuple[Adapters, JobOptimizer]]:
    """Attach adapter and optimizer to the base as they are before the first step, and remove them afterwards. Raises
    WorkloadFailed as `add_adapters`, `add_tokens` and `load_init_lora`."""
    with add_tokens(base, spec) as tokens, _attached(base, spec) as (put_on, slot):
        if starts_from_file(spec, start):
            load_init_lora(base, spec, start.inputs, put_on)
        adapters = replace(put_on, parameters=put_on.parameters | tokens.rows)
        yield adapters, _optimizer(put_on, adapters, spec, tokens, slot)


@contextmanager
def _attached(base: BaseModel, spec: TrainSpec) -> Iterator[tuple[Adapters, AdapterSlot | None]]:
    """Attach the adapter, and yield it with its slot in the lean layers: one for every layer that they can carry. The
    others have peft's layers."""
    lean = lean_layers(base, spec)
    if not lean:
        with add_adapters(base, spec) as adapters:
            yield adapters, None
        return
    others = {each.public for each in adapted_layers(base, spec)} - {each.public for each in lean}
    with ExitStack() as stack:
        slots = stack.enter_context(AdapterSlots(base, spec, count=1, layers=lean))
        apart = {}
        if others:
            apart = stack.enter_context(add_adapters(base, spec, others, dropping=slots.dropping)).parameters
        slot = slots.assign(0, spec)
        slots.set_width(1)
        every = slot.adapters.parameters | apart
        yield replace(slot.adapters, parameters={name: every[name] for name in sorted(every)}), slot


def _optimizer(
    put_on: Adapters, adapters: Adapters, spec: TrainSpec, tokens: NewTokens, slot: AdapterSlot | None
) -> JobOptimizer:
    """Return the optimizer, over whole rows where that makes no difference; over the adapter's tensors where it
    would: 8-bit AdamW and Adafactor look at a tensor as a whole."""
    if KINDS[spec.optimizer].on_rows:
        in_slot = set() if slot is None else slot.adapters.parameters.keys()
        apart = {name: each for name, each in put_on.parameters.items() if name not in in_slot}
        return SlotOptimizer(slot, spec, apart=FlatRows(apart, spec), tokens=tokens)
    optimizer = optimizer_of(adapters, spec, tokens)
    if slot is not None:
        slot.bind()  # the optimizer gave the tensors gradients of their own
    return optimizer


# ---- the file that an adapter starts from

ROLE = "init_lora"


def starts_from_file(spec: TrainSpec, start: Start) -> bool:
    """Return True when the attempt reads the file. A resume does not: its checkpoint holds the weights that came of
    the file."""
    return spec.init_lora is not None and start.resume is None


def load_init_lora(base: BaseModel, spec: TrainSpec, inputs: Iterable[InputFile], adapters: Adapters) -> None:
    """Begin with the weights of the file that the spec names. Raises WorkloadFailed(BAD_DATA) with every fault."""
    with _bad_data():
        start_from(_path(spec, inputs), base, spec, adapters)


def check_init_lora(base: BaseModel, spec: TrainSpec, inputs: Iterable[InputFile]) -> None:
    """Check the file as `load_init_lora` does, before hours are spent on caching. The base is left as it was; others
    may be training on it, if the job could share their batch."""
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
