"""A job's adapter and optimizer on the base, for a job that trains alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from giornata.diffusion.adapted_layers import why_not_lean
from giornata.diffusion.lora import Adapters, add_adapters
from giornata.diffusion.models import BaseModel
from giornata.diffusion.slot_optimizer import SlotOptimizer
from giornata.diffusion.slots import Slot, Slots
from giornata.diffusion.tokens import NewTokens, add_tokens
from giornata.protocol.joint import OPTIMIZERS
from giornata.protocol.pipe import Start
from giornata.protocol.specs import TrainSpec
from giornata.workloads.train.init_lora import load_init_lora, starts_from_file
from giornata.workloads.train.keeping import Learner
from giornata.workloads.train.steps import optimizer_of

LAYER = "lora_layer"
"""The fingerprint's entry: which code multiplies by A and B, LEAN or PEFT. They round differently."""
LEAN, PEFT = "slots", "peft"


def lora_layer(base: BaseModel, spec: TrainSpec) -> str:
    """The lean layer for every adapter that it can carry, peft's for others. The base is bare yet."""
    return PEFT if why_not_lean(base, spec) else LEAN


@contextmanager
def wearing(base: BaseModel, spec: TrainSpec, start: Start) -> Iterator[tuple[Adapters, Learner]]:
    """As they are before the first step, and gone afterwards. Raises WorkloadFailed as `add_adapters`, `add_tokens`
    and `load_init_lora`."""
    with add_tokens(base, spec) as tokens, _put_on(base, spec) as (put_on, slot):
        if starts_from_file(spec, start):
            load_init_lora(base, spec, start.inputs, put_on)
        adapters = replace(put_on, parameters=put_on.parameters | tokens.rows)
        yield adapters, _optimizer(adapters, spec, tokens, slot)


@contextmanager
def _put_on(base: BaseModel, spec: TrainSpec) -> Iterator[tuple[Adapters, Slot | None]]:
    """The adapter, and the slot that it has in the lean layers."""
    if lora_layer(base, spec) == PEFT:
        with add_adapters(base, spec) as adapters:
            yield adapters, None
        return
    with Slots(base, spec, count=1) as slots:
        slot = slots.sit(0, spec)
        slots.set_width(1)
        yield slot.adapters, slot


def _optimizer(adapters: Adapters, spec: TrainSpec, tokens: NewTokens, slot: Slot | None) -> Learner:
    """Over whole rows of the slot where that makes no difference; over the adapter's tensors where it would: 8-bit
    AdamW and Adafactor look at a tensor as a whole, and new tokens are in no row."""
    if slot is not None and spec.optimizer in OPTIMIZERS and not tokens.rows:
        return SlotOptimizer(slot, spec)
    optimizer = optimizer_of(adapters, spec, tokens)
    if slot is not None:
        slot.bind()  # the optimizer gave the tensors gradients of their own
    return optimizer
