"""Decides before a job's first step if it fits the device: it goes ahead, is made smaller, or is refused.

A driver that spills into the computer's memory makes steps ten times slower and says nothing (kohya-ss/sd-scripts
#827, #834), and an allocation that fails ends a job in the middle; both are told from the shapes beforehand.
The choice is a function of the spec, the model and the size of the device, never of what happens to be free on it:
on the same hardware the same job is always laid out in the same way.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from torch import nn

from giornata.diffusion.adapter.adapter_plan import UNET, chosen_layers, is_chosen, public_name, size_of, why_not_lean
from giornata.diffusion.base import memory
from giornata.diffusion.base.eight_bits import working_bytes
from giornata.diffusion.base.memory import GIB, ActivationPrecision, AdapterShape, in_gib
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.base.recompute import Recompute
from giornata.diffusion.base.unet_layers import PROMPT_TOKENS, Layer, LayerKind, layers_of
from giornata.diffusion.optim.optimizer_kinds import KINDS
from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.files.caption_length import CHUNK
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.adapter import AdapterType
from giornata.protocol.training.objective import has_dropout

# ---- memory plans: how a step uses the device's memory, and how it can use less
#
# Three things can give, in this order, each as far as it goes:
#
# 1. `rows`: a step's pictures go through the model all at once, or fewer at a time, down to `train_batch_size`, which
#    is what the user takes to fit. Same draws, same mean, but sums are made in another order: the last bits differ.
# 2. `recompute`: gradient checkpointing, first selective, then full. Changes no bit.
# 3. `rows` again, down to single pictures.
#
# What was chosen stands in the fingerprint of every checkpoint and holds for all later attempts of the job.

FINGERPRINT_KEY = "footprint"
_ORDER = (Recompute.OFF, Recompute.SELECTIVE, Recompute.FULL)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """A plan for the device's memory. `rows`: how many pictures go through the model at once, with as many class
    pictures beside them, if any."""

    recompute: Recompute
    rows: int

    @classmethod
    def asked_for(cls, spec: TrainSpec) -> "MemoryPlan":
        """Return the plan that the spec asks for: all of a step at once, with its gradient checkpointing."""
        rows = spec.train_batch_size * spec.gradient_accumulation_steps
        return cls(recompute=Recompute.of(spec.gradient_checkpointing), rows=rows)

    def in_words(self) -> str:
        """Describe the plan for a person."""
        return f"gradient checkpointing {self.recompute}, {self.rows} at a time"


def fallbacks(spec: TrainSpec) -> tuple[MemoryPlan, ...]:
    """Return the layouts that the job may run in: the one asked for first, then ever smaller ones."""
    plans = [MemoryPlan.asked_for(spec)]
    plans += [replace(plans[0], rows=rows) for rows in _halved(plans[0].rows, spec.train_batch_size)]
    last = plans[-1]
    plans += [replace(last, recompute=each) for each in _ORDER[_ORDER.index(last.recompute) + 1 :]]
    plans += [replace(plans[-1], rows=rows) for rows in _halved(last.rows, 1)]
    return tuple(plans)


def _halved(rows: int, least: int) -> list[int]:
    """Return half of it, rounded up, and so on, as far as `least`."""
    found = []
    while rows > least:
        rows = max(least, -(-rows // 2))
        found.append(rows)
    return found


def to_fingerprint(memory_plan: MemoryPlan, spec: TrainSpec) -> dict[str, Any]:
    """Return an entry for the fingerprint when the plan is not the one the spec asked for; empty otherwise."""
    if memory_plan == MemoryPlan.asked_for(spec):
        return {}
    return {FINGERPRINT_KEY: {"gradient_checkpointing": memory_plan.recompute.value, "rows": memory_plan.rows}}


def without_footprint(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fingerprint without the plan's entry."""
    return {name: value for name, value in fingerprint.items() if name != FINGERPRINT_KEY}


def from_fingerprint(fingerprint: Mapping[str, Any], spec: TrainSpec) -> MemoryPlan:
    """Return the plan of the attempt that wrote a checkpoint."""
    said = fingerprint.get(FINGERPRINT_KEY)
    if said is None:
        return MemoryPlan.asked_for(spec)
    return MemoryPlan(recompute=Recompute(said["gradient_checkpointing"]), rows=int(said["rows"]))


def smaller_of(one: MemoryPlan, other: MemoryPlan) -> MemoryPlan:
    """Return the largest plan that is no larger than either."""
    recompute = max(one.recompute, other.recompute, key=_ORDER.index)
    return MemoryPlan(recompute=recompute, rows=min(one.rows, other.rows))


def below_on(plans: Sequence[MemoryPlan], memory_plan: MemoryPlan) -> list[MemoryPlan]:
    """Return the plans smaller than `memory_plan`, the largest first."""
    return [plan for plan in plans if plan != memory_plan and smaller_of(plan, memory_plan) == plan]


CONTEXT_BYTES = int(0.75 * GIB)
"""CUDA's context, the libraries' kernels and workspaces: SimpleTuner's published figures are 0.65 GiB above the
tensors that are reckoned here. Not measured by us."""
FRAGMENTED = 0.05
"""Part of a device that an allocator cannot use. A guess that errs on the safe side."""
OTHERS_MATTER_BYTES = GIB
GRAPH_BYTES = 64 * 2**20
"""The bytes of a CUDA graph of a pass besides tensors, at some 8,000 launches. A guess; not measured by us."""
FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """A device's memory, and what other processes hold of it."""

    total_bytes: int
    others_bytes: int = 0

    @property
    def usable_bytes(self) -> int:
        """Return the bytes that tensors may take when nothing else uses the device."""
        return int(self.total_bytes * (1 - FRAGMENTED)) - CONTEXT_BYTES

    @property
    def taken_by_others(self) -> bool:
        """Return True when others hold so much that it is their fault if something does not fit."""
        return self.others_bytes > OTHERS_MATTER_BYTES


BudgetOf = Callable[[torch.device], MemoryBudget | None]
"""Looks at a device; None when its memory is not bounded in a way that could be told."""


def budget_of(device: torch.device) -> MemoryBudget | None:
    """Return the memory of a CUDA device; None for a CPU."""
    if device.type != "cuda":
        return None
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    ours_bytes = torch.cuda.memory_reserved(device) + CONTEXT_BYTES
    return MemoryBudget(total_bytes=total_bytes, others_bytes=max(0, total_bytes - free_bytes - ours_bytes))


def unbounded(_: torch.device) -> MemoryBudget | None:
    """Return no bound, for an attempt in which nothing is left to be trained."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySizes:
    """The memory that a job takes, in bytes. `kept_bytes` and `unit_bytes` are of one picture, by gradient
    checkpointing; `sample_sets` is 2 with class pictures and 1 without. `multiplied_out_bytes` is of a step, however
    many pictures go through the model at once, by gradient checkpointing; empty for adapters that are not multiplied
    out. `decoding_bytes` is what a picture takes that is drawn at the end."""

    weights_bytes: int
    trained_bytes: int
    kept_bytes: dict[Recompute, int]
    unit_bytes: dict[Recompute, int]
    preparing_bytes: int
    sample_sets: int
    multiplied_out_bytes: dict[Recompute, int] = field(default_factory=dict)
    decoding_bytes: int = 0

    def activation_bytes(self, memory_plan: MemoryPlan) -> int:
        """Return the bytes held between a forward pass and its backward pass."""
        pictures, recompute = memory_plan.rows * self.sample_sets, memory_plan.recompute
        of_pictures = pictures * (self.kept_bytes[recompute] + self.unit_bytes[recompute])
        return of_pictures + self.multiplied_out_bytes.get(recompute, 0)

    def training_bytes(self, memory_plan: MemoryPlan) -> int:
        """Return the most bytes that a step takes."""
        return self.weights_bytes + self.trained_bytes + self.activation_bytes(memory_plan)

    def graphs_bytes(self, memory_plan: MemoryPlan, graphs: int) -> int:
        """Return the bytes that CUDA graphs take beside plain passes. These are activations in a pool of their own,
        which all graphs share; copies of gradients, weights and moments while the first passes are checked; the
        graphs themselves."""
        return self.activation_bytes(memory_plan) + 2 * self.trained_bytes + graphs * GRAPH_BYTES

    def peak_bytes(self, memory_plan: MemoryPlan) -> int:
        """Return the most that the job takes in any of its phases."""
        return max(self.training_bytes(memory_plan), self.weights_bytes + self.preparing_bytes)


def sizes_of(base: BaseModel, spec: TrainSpec) -> MemorySizes:
    """Return the sizes of a job on this base, by its shapes alone. Nothing is computed, and no adapter need be
    on it."""
    mixed = spec.mixed_precision == "bf16"
    precision = ActivationPrecision.of(mixed=mixed, lean=not why_not_lean(base, spec))
    layers = layers_of(base.unet, spec.resolution, max_token_length=spec.max_token_length)
    adapted = adapter_shapes(layers, spec)
    text_kept, text_trained, text_multiplied_out = _of_texts(base, spec, precision)
    unit_bytes = memory.largest_unit_bytes(layers, adapted, precision)
    trained = text_trained + sum(
        adapted[layer.name].trained(layer.inputs * layer.kernel, layer.outputs)
        for layer in layers
        if layer.name in adapted
    )
    moments = KINDS[spec.optimizer].copies(spec.rank)
    copies = 2 + moments + (1 if spec.use_ema else 0)  # weights and gradients besides
    # a pass's copy of the weights, its gradient, and the same cast back
    cast_bytes = 2 * precision.half + FP32_BYTES if mixed else 0
    modules: tuple[nn.Module, ...] = (base.unet, base.vae, *base.text_encoders)
    return MemorySizes(
        weights_bytes=sum(held.nbytes for held in chain.from_iterable(_tensors(m) for m in modules))
        + working_bytes(base.unet),
        trained_bytes=int(trained * (FP32_BYTES * copies + cast_bytes)),
        kept_bytes={each: memory.kept_bytes(layers, adapted, precision, each) + text_kept for each in Recompute},
        unit_bytes={each: 0 if each is Recompute.OFF else unit_bytes for each in Recompute},
        preparing_bytes=_preparing_bytes(base, spec),
        sample_sets=2 if spec.with_prior_preservation else 1,
        multiplied_out_bytes={
            each: memory.multiplied_out_bytes(layers, adapted, precision, each) + text_multiplied_out
            for each in Recompute
        },
        decoding_bytes=_decoding_bytes(base, spec),
    )


def adapter_shapes(layers: Iterable[Layer], spec: TrainSpec) -> dict[str, AdapterShape]:
    """Return the adapters of a job on the layers of its UNet, by their names."""
    return {
        layer.name: _adapter_shape(f"{UNET}.{layer.name}", spec)
        for layer in layers
        if layer.kind in {LayerKind.LINEAR, LayerKind.CONV}
        and is_chosen(layer.name, spec.target_modules, spec.lora_unet_blocks)
    }


def _adapter_shape(public_name: str, spec: TrainSpec) -> AdapterShape:
    multiplied_out = spec.adapter_type is AdapterType.LOKR
    return AdapterShape(
        rank=size_of(spec, public_name).rank,
        magnitudes=spec.use_dora,
        multiplied_out=multiplied_out,
        drops=has_dropout(spec),
    )


def _of_texts(base: BaseModel, spec: TrainSpec, precision: ActivationPrecision) -> tuple[int, int, int]:
    """Return the bytes of text encoders that learn: what autograd keeps of a prompt, numbers that are trained, and
    what autograd keeps of adapters that are multiplied out. Gradients go through the encoders to new tokens too."""
    kept = trained = multiplied_out = 0
    chunks = spec.max_token_length // CHUNK
    if spec.train_text_encoder or spec.train_text_encoder_ti:
        kept += chunks * memory.text_bytes([_width_and_depth(model) for model in base.text_encoders], precision)
    if spec.train_text_encoder:
        for prefix, model in zip(base.family.encoder_names, base.text_encoders, strict=True):
            for name in chosen_layers(model, spec.text_encoder_target_modules):
                layer, adapter_shape = model.get_submodule(name), _adapter_shape(public_name(prefix, name), spec)
                kept += adapter_shape.kept_bytes(chunks * PROMPT_TOKENS, layer.out_features, precision.half)
                trained += adapter_shape.trained(layer.in_features, layer.out_features)
                weights = layer.in_features * layer.out_features
                multiplied_out += weights * precision.half if adapter_shape.multiplied_out else 0
    return kept, trained, multiplied_out


def fitted(spec: TrainSpec, sizes: MemorySizes, budget: MemoryBudget | None, largest: MemoryPlan) -> MemoryPlan:
    """Return the largest memory plan that fits, at most `largest`.

    Raises WorkloadFailed: NODE_TOO_SMALL when even the smallest does not; NODE_VRAM when it would, did not other
    processes hold the device's memory.
    """
    if budget is None:
        return largest
    plans = (largest, *below_on(fallbacks(spec), largest))
    chosen = next((plan for plan in plans if sizes.peak_bytes(plan) <= budget.usable_bytes), None)
    if chosen is None:
        raise _refusal(sizes, budget, plans[-1])
    need_bytes = sizes.peak_bytes(chosen)
    if budget.taken_by_others and need_bytes > budget.usable_bytes - budget.others_bytes:
        held = f"other processes hold {in_gib(budget.others_bytes)} of {in_gib(budget.total_bytes)} on the device"
        raise WorkloadFailed(Reason.NODE_VRAM, f"{held}, and the job is expected to take {in_gib(need_bytes)}")
    return chosen


def why_not_drawn(sizes: MemorySizes, budget: MemoryBudget | None) -> str | None:
    """Return the reason why the device has no room to draw a picture after the last step; None when it has. A job is
    never refused for this reason, nor made smaller: its files matter more than pictures of what they do."""
    need_bytes = sizes.weights_bytes + sizes.trained_bytes + sizes.decoding_bytes
    if budget is None or need_bytes <= budget.usable_bytes:
        return None
    needs, has = in_gib(need_bytes), in_gib(budget.usable_bytes)
    return f"a picture is expected to take {needs}, and the device has room for {has}"


def _refusal(sizes: MemorySizes, budget: MemoryBudget, smallest: MemoryPlan) -> WorkloadFailed:
    parts = (
        f"{in_gib(sizes.weights_bytes)} of weights",
        f"{in_gib(sizes.trained_bytes)} of adapter and optimizer",
        f"{in_gib(sizes.activation_bytes(smallest))} of activations",
        f"{in_gib(sizes.preparing_bytes)} to encode pictures",
    )
    message = f"the job is expected to take {in_gib(sizes.peak_bytes(smallest))} at the least ({', '.join(parts)}; "
    message += f"{smallest.in_words()}), and the device has room for {in_gib(budget.usable_bytes)}"
    hint = "lower resolution or rank, set base_quantization, or use a larger GPU"
    fault = Fault(where="spec", message=message, hint=hint)
    return WorkloadFailed(Reason.NODE_TOO_SMALL, str(fault), (fault,))


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Return parameters and buffers: weights of 8 bits are buffers."""
    return chain(module.parameters(), module.buffers())


def _width_and_depth(text_encoder: nn.Module) -> tuple[int, int]:
    config = text_encoder.config
    return config.hidden_size, config.num_hidden_layers


def _preparing_bytes(base: BaseModel, spec: TrainSpec) -> int:
    """Return the bytes for encoding one picture, or decoding one for class pictures. Pictures that are encoded
    together take at most a sixteenth of the device (giornata.diffusion.encode.latent_batches), which is not reckoned
    here."""
    if spec.with_prior_preservation and spec.class_dataset is None:
        return _decoding_bytes(base, spec)
    return memory.vae_bytes(base.vae.config.block_out_channels[0], spec.resolution, base.vae.dtype.itemsize)


def _decoding_bytes(base: BaseModel, spec: TrainSpec) -> int:
    """Return the bytes for decoding, which is wider at full resolution than encoding."""
    widths = base.vae.config.block_out_channels
    return memory.vae_bytes(widths[min(1, len(widths) - 1)], spec.resolution, base.vae.dtype.itemsize)
