"""The layers that a job adapts, with the rank and alpha of each.

Layers are named as `giornata.diffusion.adapter.lora` names them in public: `unet.…`, `text_encoder.text_model.…`,
`text_encoder_2.text_model.…`. A pattern holds for a layer by the rule of peft's `rank_pattern`: when it is the end of
the name from a dot on, or a regular expression for that. Where several hold, the longest counts, so that the order in
which they were written down has no part in it.
"""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from giornata.diffusion.adapter.batched_lora import BatchedLoraLinear
from giornata.diffusion.adapter.tokens import learning_steps
from giornata.diffusion.base.eight_bits import EightBitLinear
from giornata.diffusion.base.models import BaseModel
from giornata.domain.errors import Fault
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.adapter import AdapterType

V = TypeVar("V")
ADAPTABLE = (nn.Linear, nn.Conv2d)
_BLOCK = re.compile(r"((?:(?:down|up)_blocks\.\d+|mid_block)(?:\.[a-z]+\.\d+)?)\..+")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSize:
    """The rank and alpha of one layer's adapter: alpha divided by the rank gives the scale, as every loader computes
    it."""

    rank: int
    alpha: float


def size_of(spec: TrainSpec, layer: str) -> AdapterSize:
    """Return the size of one layer's adapter.

    Alpha defaults to the spec's rank, also where a pattern gives the layer another rank, as with peft and kohya.
    Rank-stabilized LoRA (Kalajdzievski, 2023, arXiv 2312.03732) wants alpha / sqrt(rank) as the scale: an alpha that
    is sqrt(rank) times as large.
    """
    rank = matching(spec.rank_pattern, layer, spec.rank)
    return _size(spec, rank, matching(spec.alpha_pattern, layer, _alpha(spec)))


def usual_size(spec: TrainSpec) -> AdapterSize:
    """Return the size of layers that no pattern matches."""
    return _size(spec, spec.rank, _alpha(spec))


def _alpha(spec: TrainSpec) -> float:
    return float(spec.rank) if spec.alpha is None else spec.alpha


def _size(spec: TrainSpec, rank: int, alpha: float) -> AdapterSize:
    return AdapterSize(rank=rank, alpha=alpha * math.sqrt(rank) if spec.use_rslora else alpha)


def matching(patterns: Mapping[str, V], layer: str, default: V) -> V:
    """Return the value of the longest pattern that holds for the layer."""
    found = [pattern for pattern in patterns if holds(pattern, layer)]
    return patterns[max(found, key=lambda pattern: (len(pattern), pattern))] if found else default


def holds(pattern: str, layer: str) -> bool:
    """Return True when peft would match the pattern to this layer."""
    return re.match(rf"(.*\.)?({pattern})$", layer) is not None


def chosen_layers(model: nn.Module, targets: Iterable[str], blocks: Iterable[str] | None = None) -> list[str]:
    """Return the names in `model` of the layers that end in one of `targets` and lie in one of `blocks`, if any are
    given."""
    targets, blocks = tuple(targets), None if blocks is None else tuple(blocks)
    return [name for name in layers_of(model) if is_chosen(name, targets, blocks)]


def is_chosen(name: str, targets: Collection[str], blocks: Collection[str] | None) -> bool:
    """Return True when a layer of this name ends in one of `targets` and lies in one of `blocks`, if any are
    given."""
    in_blocks = blocks is None or any(lies_in(name, block) for block in blocks)
    return in_blocks and any(ends_in(name, target) for target in targets)


def layers_of(model: nn.Module) -> list[str]:
    """Return the names of all layers that can be adapted."""
    return [name for name, layer in model.named_modules() if isinstance(layer, ADAPTABLE)]


def exactly(names: Iterable[str]) -> str:
    """Return a regular expression for these names and no others; for none at all, one that nothing matches."""
    return "^(?:" + "|".join(re.escape(name) for name in sorted(names)) + ")" if names else "(?!)"


def peft_patterns(sizes: Mapping[str, AdapterSize], spec: TrainSpec) -> tuple[dict[str, int], dict[str, float]]:
    """Return peft's `rank_pattern` and `alpha_pattern` for the layers whose sizes differ from most, by their names in
    the model.

    One pattern to a value: peft asks each pattern about each layer, and a pattern to a layer takes minutes.
    """
    ranks: dict[int, list[str]] = defaultdict(list)
    alphas: dict[float, list[str]] = defaultdict(list)
    usual = usual_size(spec)
    for name, size in sizes.items():
        if size.rank != usual.rank:
            ranks[size.rank].append(name)
        if size.alpha != usual.alpha:
            alphas[size.alpha].append(name)
    return (
        {exactly(names): rank for rank, names in sorted(ranks.items())},
        {exactly(names): alpha for alpha, names in sorted(alphas.items())},
    )


def plan_faults(unet: nn.Module, text_encoders: Iterable[nn.Module], spec: TrainSpec) -> list[Fault]:
    """Return a fault for everything in the spec that names missing layers or blocks, with those that exist."""
    faults = target_faults(unet, spec.target_modules) + block_faults(unet, spec.lora_unet_blocks)
    faults += block_faults(unet, spec.block_learning_rates, where="spec.block_learning_rates")
    text_encoders = tuple(text_encoders) if spec.train_text_encoder else ()
    faults += _rates_faults(spec, len(text_encoders))
    for encoder in text_encoders[:1]:  # all have the same layers
        where, what = "spec.text_encoder_target_modules", "the text encoders"
        faults += target_faults(encoder, spec.text_encoder_target_modules, where=where, what=what)
    names = [f"unet.{name}" for name in chosen_layers(unet, spec.target_modules, spec.lora_unet_blocks)]
    if not names and not faults:
        message = "none of the layers in target_modules lies in these blocks"
        hint = f"choose among {', '.join(blocks_of(unet))}"
        faults.append(Fault(where="spec.lora_unet_blocks", message=message, hint=hint))
    for prefix, encoder in zip(("text_encoder", "text_encoder_2"), text_encoders, strict=False):
        names += [f"{prefix}.{name}" for name in chosen_layers(encoder, spec.text_encoder_target_modules)]
    return faults + (pattern_faults(names, spec) if names else [])


def pattern_faults(layers: list[str], spec: TrainSpec) -> list[Fault]:
    """Return faults for patterns that hold for none of the adapted layers."""
    faults = []
    for field in ("rank_pattern", "alpha_pattern"):
        idle = [pattern for pattern in getattr(spec, field) if not any(holds(pattern, layer) for layer in layers)]
        if idle:
            known = ", ".join(sorted({suffix(layer) for layer in layers}))
            blocks = ", ".join(sorted({match[1] for layer in layers if (match := _BLOCK.search(layer))}))
            message = "no layer that is adapted is meant by " + ", ".join(idle)
            hint = f"there are {known}" + (f", in {blocks}" if blocks else "")
            faults.append(Fault(where=f"spec.{field}", message=message, hint=hint))
    return faults


def _rates_faults(spec: TrainSpec, count: int) -> list[Fault]:
    """Return a fault when the rates are for another number of text encoders than the base has."""
    rates = spec.text_encoder_learning_rates
    if rates is None or len(rates) == count:
        return []
    message = f"has {len(rates)} rates, and the base model has {count} text encoders"
    return [Fault(where="spec.text_encoder_learning_rates", message=message, hint="give one rate for each")]


def block_faults(
    unet: nn.Module, blocks: Iterable[str] | None, *, where: str = "spec.lora_unet_blocks"
) -> list[Fault]:
    """Return one fault for all blocks that the UNet does not have."""
    layers = layers_of(unet)
    unknown = [block for block in blocks or () if not any(lies_in(name, block) for name in layers)]
    if not unknown:
        return []
    message = "the UNet has no block " + ", ".join(unknown)
    return [Fault(where=where, message=message, hint=f"there are {', '.join(blocks_of(unet))}")]


def blocks_of(unet: nn.Module) -> list[str]:
    """Return blocks such as `up_blocks.0.attentions.1`, in the UNet's order."""
    return list(dict.fromkeys(match[1] for name in layers_of(unet) if (match := _BLOCK.fullmatch(name))))


def target_faults(
    model: nn.Module, targets: tuple[str, ...], *, where: str = "spec.target_modules", what: str = "the UNet"
) -> list[Fault]:
    """Return one fault for all suffixes that name no layer that can be adapted; it lists the suffixes that exist."""
    layers = layers_of(model)
    others = [name for name, layer in model.named_modules() if not isinstance(layer, ADAPTABLE)]
    unknown = [target for target in targets if not any(ends_in(name, target) for name in layers)]
    wider = [target for target in targets if any(ends_in(name, target) for name in others)]
    faults = []
    known = ", ".join(sorted({suffix(name) for name in layers}))
    if nothing := [target for target in unknown if target not in wider]:
        message = f"no layer of {what} is called " + ", ".join(nothing)
        faults.append(Fault(where=where, message=message, hint=f"there are {known}"))
    if wider:
        message = ", ".join(wider) + " names more than single linear or convolution layers"
        faults.append(Fault(where=where, message=message, hint=f"there are {known}"))
    return faults


def ends_in(name: str, target: str) -> bool:
    """Return True when `target` is the name, or the name's end from a dot on."""
    return name == target or name.endswith(f".{target}")


def lies_in(name: str, block: str) -> bool:
    """Return True when the layer is the block, or lies in the block."""
    return name == block or name.startswith(f"{block}.")


def suffix(name: str) -> str:
    """Return the shortest end of a name that starts with a word rather than a number: `to_out.0`, `net.0.proj`,
    `to_q`."""
    parts = name.split(".")
    start = len(parts) - 1
    while start > 0 and (parts[start].isdigit() or (parts[start] == "proj" and parts[start - 1].isdigit())):
        start -= 1
    return ".".join(parts[start:])


# ---- the layers of an adapter, and which of them the lean layer can carry

CARRIED = (nn.Linear, EightBitLinear, BatchedLoraLinear)
"""The types that the lean layer replaces, and its own. Subclasses are not carried: they do something more."""
UNET = "unet"
# Newer versions of transformers dropped this level from one of the two encoders. Names must not depend on it.
TEXT_ROOT = "text_model."


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedLayer:
    """One adapted layer of a model. `name` is its name in `model`, `public` that in the keys of
    `giornata.diffusion.adapter.lora.Adapters`."""

    model: nn.Module
    name: str
    public: str
    layer: nn.Module

    def shapes(self, rank: int) -> dict[str, tuple[int, int]]:
        """Return the shapes of A and B, by these letters, of a LoRA on a linear layer."""
        if not isinstance(self.layer, nn.Linear):
            raise TypeError(f"{self.public} is not linear")
        return {"A": (rank, self.layer.in_features), "B": (self.layer.out_features, rank)}


def adapted_layers(base: BaseModel, spec: TrainSpec) -> tuple[AdaptedLayer, ...]:
    """Return all layers that the job adapts, in the models' order; those of the UNet first."""
    chosen = [(UNET, base.unet, chosen_layers(base.unet, spec.target_modules, spec.lora_unet_blocks))]
    if spec.train_text_encoder:
        named = zip(base.family.encoder_names, base.text_encoders, strict=True)
        chosen += [(prefix, each, chosen_layers(each, spec.text_encoder_target_modules)) for prefix, each in named]
    return tuple(
        AdaptedLayer(model=model, name=name, public=public_name(prefix, name), layer=model.get_submodule(name))
        for prefix, model, names in chosen
        for name in names
    )


def public_name(prefix: str, key: str) -> str:
    """Return a layer's public name: `unet.<key>` or `text_encoder….text_model.<key>`."""
    if prefix != UNET and not key.startswith(TEXT_ROOT):
        key = TEXT_ROOT + key
    return f"{prefix}.{key}"


def why_not_lean(base: BaseModel, spec: TrainSpec) -> tuple[str, ...]:
    """Return every reason why layers of the job's adapter need peft's layers; empty when the lean layer can carry
    all.

    The lean layer is `giornata.diffusion.adapter.batched_lora`. The adapter and the base decide, and nothing else.

    The lean layer is the product of two matrices on a linear layer. LoKr has other factors, DoRA the norm of the
    whole weight, and the A of a convolution is a convolution.
    """
    others = {suffix(each.name) for each in adapted_layers(base, spec) if type(each.layer) not in CARRIED}
    return (*_why_none_is_lean(spec), *(f"{name} is not a plain linear layer" for name in sorted(others)))


def lean_layers(base: BaseModel, spec: TrainSpec) -> tuple[AdaptedLayer, ...]:
    """Return the adapted layers that the lean layer can carry."""
    if _why_none_is_lean(spec):
        return ()
    return tuple(each for each in adapted_layers(base, spec) if type(each.layer) in CARRIED)


def _why_none_is_lean(spec: TrainSpec) -> list[str]:
    reasons = [] if spec.adapter_type is AdapterType.LORA else [f"adapter_type {spec.adapter_type}"]
    return reasons + (["use_dora"] if spec.use_dora else [])


def lean_shapes(base: BaseModel, spec: TrainSpec) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of an adapter that the lean layer can carry, by their names in `Adapters`."""
    return {
        f"{each.public}.lora_{letter}.weight": shape
        for each in adapted_layers(base, spec)
        for letter, shape in each.shapes(size_of(spec, each.public).rank).items()
    }


# ---- learning rates: a function of the spec and the tensor's name

TEXT, TOKENS = "text_encoders", "tokens"
ENCODERS = ("text_encoder", "text_encoder_2")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRate:
    """The learning rate that the tensors of one group share. `kind` is "unet", "text_encoders" or "tokens"; the
    tensors learn in the first `stop_step` steps, or in all steps when it is None."""

    kind: str
    learning_rate: float
    stop_step: int | None = None


def rate_of(spec: TrainSpec, name: str) -> LearningRate:
    """Return the rate of a tensor, by its name in `giornata.diffusion.adapter.lora.Adapters`.

    A tensor with rate 0 learns in no step: its gradient counts in no norm, and nothing moves it.
    """
    prefix, _, layer = name.partition(".")
    if prefix == TOKENS:
        return LearningRate(kind=TOKENS, learning_rate=spec.text_encoder_lr, stop_step=learning_steps(spec))
    if prefix == UNET:
        blocks = [block for block in spec.block_learning_rates if lies_in(layer, block)]
        rate = spec.block_learning_rates[max(blocks, key=len)] if blocks else spec.learning_rate
        return LearningRate(kind=UNET, learning_rate=rate, stop_step=None if rate > 0 else 0)
    rates = spec.text_encoder_learning_rates
    rate = spec.text_encoder_lr if rates is None else rates[ENCODERS.index(prefix)]
    return LearningRate(kind=TEXT, learning_rate=rate, stop_step=spec.stop_text_encoder_training if rate > 0 else 0)


def by_rate(spec: TrainSpec, names: Iterable[str]) -> dict[LearningRate, list[str]]:
    """Return the names in groups of one rate, in the order of the first of each."""
    found: dict[LearningRate, list[str]] = {}
    for name in names:
        found.setdefault(rate_of(spec, name), []).append(name)
    return found


def segments_of(spec: TrainSpec, places: Iterable[tuple[str, int, int]]) -> dict[str, tuple[LearningRate, int, int]]:
    """Return the pieces of a row that learn at one rate, as (rate, start, end), by names without a dot. A name is the
    kind, and from the second piece of a kind on a number too. `places` are (name of a tensor, start, end), one after
    the other."""
    pieces: list[tuple[LearningRate, int, int]] = []
    for name, start, end in places:
        rate = rate_of(spec, name)
        begin = pieces.pop()[1] if pieces and pieces[-1][0] == rate else start
        pieces.append((rate, begin, end))
    found: dict[str, tuple[LearningRate, int, int]] = {}
    for number, piece in enumerate(pieces):
        kind = piece[0].kind
        found[f"{kind}@{number}" if kind in found else kind] = piece
    return found
