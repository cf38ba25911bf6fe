"""The layers that a job's adapter is put on, and which of them the lean layer can carry."""

from dataclasses import dataclass

from torch import nn

from giornata.diffusion.adapter_plan import chosen_layers, size_of, suffix
from giornata.diffusion.eight_bits import EightBitLinear
from giornata.diffusion.models import BaseModel
from giornata.diffusion.slot_layer import SlotLinear
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.adapter import AdapterType

CARRIED = (nn.Linear, EightBitLinear, SlotLinear)
"""What the lean layer takes the place of, and itself. Not what is derived from these: that does something more."""
UNET = "unet"
# Newer versions of transformers dropped this level from one of the two encoders. Names must not depend on it.
TEXT_ROOT = "text_model."


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedLayer:
    """One layer. `name` is its name in `model`, `public` that in the keys of `giornata.diffusion.lora.Adapters`."""

    model: nn.Module
    name: str
    public: str
    layer: nn.Module

    def shapes(self, rank: int) -> dict[str, tuple[int, int]]:
        """Of A and B, by these letters, of a LoRA on a linear layer."""
        if not isinstance(self.layer, nn.Linear):
            raise TypeError(f"{self.public} is not linear")
        return {"A": (rank, self.layer.in_features), "B": (self.layer.out_features, rank)}


def adapted_layers(base: BaseModel, spec: TrainSpec) -> tuple[AdaptedLayer, ...]:
    """All of them, in the models' order; those of the UNet first."""
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
    """`unet.<key>` or `text_encoder….text_model.<key>`."""
    if prefix != UNET and not key.startswith(TEXT_ROOT):
        key = TEXT_ROOT + key
    return f"{prefix}.{key}"


def why_not_lean(base: BaseModel, spec: TrainSpec) -> tuple[str, ...]:
    """Every reason why layers of the job's adapter need peft's layers; empty when the lean layer
    (`giornata.diffusion.slot_layer`) can carry all. The adapter and the base decide, and nothing else of the job.

    The lean layer is the product of two matrices on a linear layer. LoKr has other factors, DoRA the norm of the
    whole weight, and the A of a convolution is a convolution.
    """
    others = {suffix(each.name) for each in adapted_layers(base, spec) if type(each.layer) not in CARRIED}
    return (*_why_none_is_lean(spec), *(f"{name} is not a plain linear layer" for name in sorted(others)))


def lean_layers(base: BaseModel, spec: TrainSpec) -> tuple[AdaptedLayer, ...]:
    """Those of the adapted layers that the lean layer can carry."""
    if _why_none_is_lean(spec):
        return ()
    return tuple(each for each in adapted_layers(base, spec) if type(each.layer) in CARRIED)


def _why_none_is_lean(spec: TrainSpec) -> list[str]:
    reasons = [] if spec.adapter_type is AdapterType.LORA else [f"adapter_type {spec.adapter_type}"]
    return reasons + (["use_dora"] if spec.use_dora else [])


def lean_shapes(base: BaseModel, spec: TrainSpec) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of an adapter that the lean layer can carry, by their names in `Adapters`."""
    return {
        f"{each.public}.lora_{letter}.weight": shape
        for each in adapted_layers(base, spec)
        for letter, shape in each.shapes(size_of(spec, each.public).rank).items()
    }
