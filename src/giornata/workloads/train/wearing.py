"""A job's adapter and optimizer on the base, for a job that trains alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from giornata.diffusion.lora import Adapters, add_adapters
from giornata.diffusion.models import BaseModel
from giornata.diffusion.optimizer import AdapterOptimizer
from giornata.diffusion.slot_optimizer import SlotOptimizer
from giornata.diffusion.slots import Slots
from giornata.diffusion.tokens import add_tokens
from giornata.protocol.joint import why_unfit
from giornata.protocol.pipe import Start
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.optimisation import Compile
from giornata.workloads.train.init_lora import load_init_lora, starts_from_file
from giornata.workloads.train.steps import optimizer_of

LAYER = "lora_layer"
"""The fingerprint's entry: which code multiplies by A and B, "slots" or "peft". They round differently."""


def lora_layer(spec: TrainSpec) -> str:
    """The lean layer for every job that it can carry, which are those that could share a batch; peft's for others.
    Compiled kernels keep a job from sharing one, but not from the layer."""
    return "peft" if why_unfit(spec.model_copy(update={"compile": Compile.OFF})) else "slots"


@contextmanager
def wearing(
    base: BaseModel, spec: TrainSpec, start: Start
) -> Iterator[tuple[Adapters, AdapterOptimizer | SlotOptimizer]]:
    """As they are before the first step, and gone afterwards. Raises WorkloadFailed as `add_adapters`, `add_tokens`
    and `load_init_lora`."""
    if lora_layer(spec) == "peft":
        with add_tokens(base, spec) as tokens, add_adapters(base, spec) as put_on:
            if starts_from_file(spec, start):
                load_init_lora(base, spec, start.inputs, put_on)
            adapters = replace(put_on, parameters=put_on.parameters | tokens.rows)
            yield adapters, optimizer_of(adapters, spec, tokens)
        return
    slots = Slots(base, count=1, rank=spec.rank, targets=spec.target_modules, text_encoders=spec.train_text_encoder)
    with slots:
        slot = slots.sit(0, spec)
        slots.set_width(1)
        with slots.on():
            yield slot.adapters, SlotOptimizer(slot, spec)
