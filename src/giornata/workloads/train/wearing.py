"""A job's adapter and optimizer on the base, for a job that trains alone."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from giornata.diffusion.adapted_layers import adapted_layers, lean_layers
from giornata.diffusion.flat_rows import FlatRows
from giornata.diffusion.lora import Adapters, add_adapters
from giornata.diffusion.models import BaseModel
from giornata.diffusion.optimizer_kinds import KINDS
from giornata.diffusion.slot_optimizer import SlotOptimizer
from giornata.diffusion.slots import Slot, Slots
from giornata.diffusion.tokens import NewTokens, add_tokens
from giornata.protocol.pipe import Start
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.init_lora import load_init_lora, starts_from_file
from giornata.workloads.train.keeping import Learner
from giornata.workloads.train.steps import optimizer_of

LAYER = "lora_layer"
"""The fingerprint's entry: which code multiplies by A and B, LEAN, PEFT or BOTH. They round differently."""
LEAN, PEFT, BOTH = "slots", "peft", "slots and peft"
ROWS = "rows"
"""The fingerprint's entry of jobs whose optimizer works on rows, and did not in earlier versions: clipping sums in
another order."""


def lora_layer(base: BaseModel, spec: TrainSpec) -> str:
    """LEAN when the lean layer can carry every layer of the adapter, PEFT when none, otherwise BOTH. The base is bare
    yet."""
    lean = len(lean_layers(base, spec))
    if not lean:
        return PEFT
    return LEAN if lean == len(adapted_layers(base, spec)) else BOTH


def layer_entries(layer: str, spec: TrainSpec) -> dict[str, str]:
    """What the fingerprint says of a job whose `lora_layer` this is."""
    in_rows = KINDS[spec.optimizer].on_rows and (layer != LEAN or spec.train_text_encoder_ti)
    return {LAYER: layer} | ({ROWS: "all"} if in_rows else {})


@contextmanager
def wearing(base: BaseModel, spec: TrainSpec, start: Start) -> Iterator[tuple[Adapters, Learner]]:
    """As they are before the first step, and gone afterwards. Raises WorkloadFailed as `add_adapters`, `add_tokens`
    and `load_init_lora`."""
    with add_tokens(base, spec) as tokens, _put_on(base, spec) as (put_on, slot):
        if starts_from_file(spec, start):
            load_init_lora(base, spec, start.inputs, put_on)
        adapters = replace(put_on, parameters=put_on.parameters | tokens.rows)
        yield adapters, _optimizer(put_on, adapters, spec, tokens, slot)


@contextmanager
def _put_on(base: BaseModel, spec: TrainSpec) -> Iterator[tuple[Adapters, Slot | None]]:
    """The adapter, and the slot that it has in the lean layers: one for every layer that they can carry. The others
    have peft's layers."""
    lean = lean_layers(base, spec)
    if not lean:
        with add_adapters(base, spec) as adapters:
            yield adapters, None
        return
    others = {each.public for each in adapted_layers(base, spec)} - {each.public for each in lean}
    with ExitStack() as stack:
        slots = stack.enter_context(Slots(base, spec, count=1, layers=lean))
        apart = {}
        if others:
            apart = stack.enter_context(add_adapters(base, spec, others, dropping=slots.dropping)).parameters
        slot = slots.sit(0, spec)
        slots.set_width(1)
        every = slot.adapters.parameters | apart
        yield replace(slot.adapters, parameters={name: every[name] for name in sorted(every)}), slot


def _optimizer(
    put_on: Adapters, adapters: Adapters, spec: TrainSpec, tokens: NewTokens, slot: Slot | None
) -> Learner:
    """Over whole rows where that makes no difference; over the adapter's tensors where it would: 8-bit AdamW and
    Adafactor look at a tensor as a whole."""
    if KINDS[spec.optimizer].on_rows:
        in_slot = set() if slot is None else slot.adapters.parameters.keys()
        apart = {name: each for name, each in put_on.parameters.items() if name not in in_slot}
        return SlotOptimizer(slot, spec, apart=FlatRows(apart, spec), tokens=tokens)
    optimizer = optimizer_of(adapters, spec, tokens)
    if slot is not None:
        slot.bind()  # the optimizer gave the tensors gradients of their own
    return optimizer
