"""Whether a job fits the device, told before its first step: it goes ahead, is made smaller, or is refused.

A driver that spills into the computer's memory makes steps ten times slower and says nothing (kohya-ss/sd-scripts
#827, #834), and an allocation that fails ends a job in the middle; both are told from the shapes beforehand.
The choice is a function of the spec, the model and the size of the device, never of what happens to be free on it:
on the same hardware the same job is always laid out in the same way.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import nn

from giornata.diffusion import memory
from giornata.diffusion.adapted_layers import UNET, public_name, why_not_lean
from giornata.diffusion.adapter_plan import chosen_layers, is_chosen, size_of
from giornata.diffusion.eight_bits import working_bytes
from giornata.diffusion.memory import GIB, Precision, Worn, in_gib
from giornata.diffusion.models import BaseModel
from giornata.diffusion.optimizer_kinds import KINDS
from giornata.diffusion.recompute import Recompute
from giornata.diffusion.unet_layers import PROMPT_TOKENS, Kind, Layer, layers_of
from giornata.domain.caption_length import CHUNK
from giornata.domain.errors import Fault
from giornata.domain.reasons import Reason
from giornata.engine.workload import WorkloadFailed
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.adapter import AdapterType
from giornata.protocol.training.objective import has_dropout
from giornata.workloads.train.footprint import Footprint, below_on, ladder

CONTEXT_BYTES = int(0.75 * GIB)
"""CUDA's context, the libraries' kernels and workspaces: SimpleTuner's published figures are 0.65 GiB above the
tensors that are reckoned here. Not measured by us."""
FRAGMENTED = 0.05
"""Part of a device that an allocator cannot use. A guess that errs on the safe side."""
OTHERS_MATTER_BYTES = GIB
GRAPH_BYTES = 64 * 2**20
"""What a CUDA graph of a pass takes besides tensors, at some 8,000 launches. A guess; not measured by us."""
FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A device's memory, and what other processes hold of it."""

    total_bytes: int
    others_bytes: int = 0

    @property
    def usable_bytes(self) -> int:
        """What tensors may take when nobody else is there."""
        return int(self.total_bytes * (1 - FRAGMENTED)) - CONTEXT_BYTES

    @property
    def taken_by_others(self) -> bool:
        """Whether others hold so much that it is their fault if something does not fit."""
        return self.others_bytes > OTHERS_MATTER_BYTES


RoomOf = Callable[[torch.device], Room | None]
"""Looks at a device; None when its memory is not bounded in a way that could be told."""


def room_of(device: torch.device) -> Room | None:
    """The memory of a CUDA device; None for a CPU."""
    if device.type != "cuda":
        return None
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    ours_bytes = torch.cuda.memory_reserved(device) + CONTEXT_BYTES
    return Room(total_bytes=total_bytes, others_bytes=max(0, total_bytes - free_bytes - ours_bytes))


def unbounded(_: torch.device) -> Room | None:
    """For when nothing is left to be trained."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a job takes, in bytes. `kept_bytes` and `unit_bytes` are of one picture, by gradient checkpointing;
    `materials` is 2 with class pictures and 1 without. `multiplied_out_bytes` is of a step, however many pictures go
    through the model at once, by gradient checkpointing; empty for adapters that are not multiplied out.
    `decoding_bytes` is what a picture takes that is drawn at the end."""

    weights_bytes: int
    trained_bytes: int
    kept_bytes: dict[Recompute, int]
    unit_bytes: dict[Recompute, int]
    preparing_bytes: int
    materials: int
    multiplied_out_bytes: dict[Recompute, int] = field(default_factory=dict)
    decoding_bytes: int = 0

    def activation_bytes(self, footprint: Footprint) -> int:
        """What is held between a forward pass and its backward pass."""
        pictures, recompute = footprint.rows * self.materials, footprint.recompute
        of_pictures = pictures * (self.kept_bytes[recompute] + self.unit_bytes[recompute])
        return of_pictures + self.multiplied_out_bytes.get(recompute, 0)

    def training_bytes(self, footprint: Footprint) -> int:
        """The most that a step takes."""
        return self.weights_bytes + self.trained_bytes + self.activation_bytes(footprint)

    def graphs_bytes(self, footprint: Footprint, graphs: int) -> int:
        """What CUDA graphs take beside plain passes: activations in a pool of their own, which all graphs share;
        copies of gradients, weights and moments while the first passes are checked; the graphs themselves."""
        return self.activation_bytes(footprint) + 2 * self.trained_bytes + graphs * GRAPH_BYTES

    def peak_bytes(self, footprint: Footprint) -> int:
        """The most that the job takes in any of its phases."""
        return max(self.training_bytes(footprint), self.weights_bytes + self.preparing_bytes)


def sizes_of(base: BaseModel, spec: TrainSpec) -> Sizes:
    """The sizes of a job on this base, by its shapes alone. Nothing is computed, and no adapter need be on it."""
    mixed = spec.mixed_precision == "bf16"
    precision = Precision.of(mixed=mixed, lean=not why_not_lean(base, spec))
    layers = layers_of(base.unet, spec.resolution, max_token_length=spec.max_token_length)
    adapted = worn_on(layers, spec)
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
    return Sizes(
        weights_bytes=sum(held.nbytes for held in chain.from_iterable(_tensors(m) for m in modules))
        + working_bytes(base.unet),
        trained_bytes=int(trained * (FP32_BYTES * copies + cast_bytes)),
        kept_bytes={each: memory.kept_bytes(layers, adapted, precision, each) + text_kept for each in Recompute},
        unit_bytes={each: 0 if each is Recompute.OFF else unit_bytes for each in Recompute},
        preparing_bytes=_preparing_bytes(base, spec),
        materials=2 if spec.with_prior_preservation else 1,
        multiplied_out_bytes={
            each: memory.multiplied_out_bytes(layers, adapted, precision, each) + text_multiplied_out
            for each in Recompute
        },
        decoding_bytes=_decoding_bytes(base, spec),
    )


def worn_on(layers: Iterable[Layer], spec: TrainSpec) -> dict[str, Worn]:
    """The adapters of a job on the layers of its UNet, by their names."""
    return {
        layer.name: _worn(f"{UNET}.{layer.name}", spec)
        for layer in layers
        if layer.kind in {Kind.LINEAR, Kind.CONV}
        and is_chosen(layer.name, spec.target_modules, spec.lora_unet_blocks)
    }


def _worn(public_name: str, spec: TrainSpec) -> Worn:
    multiplied_out = spec.adapter_type is AdapterType.LOKR
    return Worn(
        rank=size_of(spec, public_name).rank,
        magnitudes=spec.use_dora,
        multiplied_out=multiplied_out,
        drops=has_dropout(spec),
    )


def _of_texts(base: BaseModel, spec: TrainSpec, precision: Precision) -> tuple[int, int, int]:
    """Of text encoders that learn: what autograd keeps of a prompt, numbers that are trained, and what autograd keeps
    of adapters that are multiplied out. Gradients go through the encoders to new tokens too."""
    kept = trained = multiplied_out = 0
    chunks = spec.max_token_length // CHUNK
    if spec.train_text_encoder or spec.train_text_encoder_ti:
        kept += chunks * memory.text_bytes([_width_and_depth(model) for model in base.text_encoders], precision)
    if spec.train_text_encoder:
        for prefix, model in zip(base.family.encoder_names, base.text_encoders, strict=True):
            for name in chosen_layers(model, spec.text_encoder_target_modules):
                layer, worn = model.get_submodule(name), _worn(public_name(prefix, name), spec)
                kept += worn.kept_bytes(chunks * PROMPT_TOKENS, layer.out_features, precision.half)
                trained += worn.trained(layer.in_features, layer.out_features)
                weights = layer.in_features * layer.out_features
                multiplied_out += weights * precision.half if worn.multiplied_out else 0
    return kept, trained, multiplied_out


def fitted(spec: TrainSpec, sizes: Sizes, room: Room | None, largest: Footprint) -> Footprint:
    """The largest footprint that fits, at most `largest`.

    Raises WorkloadFailed: NODE_TOO_SMALL when even the smallest does not; NODE_VRAM when it would, did not other
    processes hold the device's memory.
    """
    if room is None:
        return largest
    rungs = (largest, *below_on(ladder(spec), largest))
    chosen = next((rung for rung in rungs if sizes.peak_bytes(rung) <= room.usable_bytes), None)
    if chosen is None:
        raise _refusal(sizes, room, rungs[-1])
    need_bytes = sizes.peak_bytes(chosen)
    if room.taken_by_others and need_bytes > room.usable_bytes - room.others_bytes:
        held = f"other processes hold {in_gib(room.others_bytes)} of {in_gib(room.total_bytes)} on the device"
        raise WorkloadFailed(Reason.NODE_VRAM, f"{held}, and the job is expected to take {in_gib(need_bytes)}")
    return chosen


def why_not_drawn(sizes: Sizes, room: Room | None) -> str | None:
    """What keeps the device from drawing a picture when the steps are done, if anything does. A job is never refused
    for it, nor made smaller: its files matter more than pictures of what they do."""
    need_bytes = sizes.weights_bytes + sizes.trained_bytes + sizes.decoding_bytes
    if room is None or need_bytes <= room.usable_bytes:
        return None
    needs, has = in_gib(need_bytes), in_gib(room.usable_bytes)
    return f"a picture is expected to take {needs}, and the device has room for {has}"


def _refusal(sizes: Sizes, room: Room, smallest: Footprint) -> WorkloadFailed:
    parts = (
        f"{in_gib(sizes.weights_bytes)} of weights",
        f"{in_gib(sizes.trained_bytes)} of adapter and optimizer",
        f"{in_gib(sizes.activation_bytes(smallest))} of activations",
        f"{in_gib(sizes.preparing_bytes)} to encode pictures",
    )
    message = f"the job is expected to take {in_gib(sizes.peak_bytes(smallest))} at the least ({', '.join(parts)}; "
    message += f"{smallest.in_words()}), and the device has room for {in_gib(room.usable_bytes)}"
    hint = "lower resolution or rank, set base_quantization, or use a larger GPU"
    fault = Fault(where="spec", message=message, hint=hint)
    return WorkloadFailed(Reason.NODE_TOO_SMALL, str(fault), (fault,))


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Buffers too: weights of 8 bits are some."""
    return chain(module.parameters(), module.buffers())


def _width_and_depth(text_encoder: nn.Module) -> tuple[int, int]:
    config = text_encoder.config
    return config.hidden_size, config.num_hidden_layers


def _preparing_bytes(base: BaseModel, spec: TrainSpec) -> int:
    """One picture is encoded, or decoded for class pictures. Where several are encoded together they take at most a
    sixteenth of the device (giornata.diffusion.latent_batches), which is not reckoned here."""
    if spec.with_prior_preservation and spec.class_dataset is None:
        return _decoding_bytes(base, spec)
    return memory.vae_bytes(base.vae.config.block_out_channels[0], spec.resolution, base.vae.dtype.itemsize)


def _decoding_bytes(base: BaseModel, spec: TrainSpec) -> int:
    """Wider at full resolution than encoding."""
    widths = base.vae.config.block_out_channels
    return memory.vae_bytes(widths[min(1, len(widths) - 1)], spec.resolution, base.vae.dtype.itemsize)
