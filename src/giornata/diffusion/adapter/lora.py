"""Adapters on a frozen base: attached, named, and removed again.

Shapes: r rank, I inputs, O outputs of the adapted layer. A is r × I (r × I × k × k on a convolution), B is O × r
(O × r × 1 × 1). The layer gives W·x + (alpha / r)·B·A·x (Hu et al., "LoRA", arXiv 2106.09685); for DoRA see
`giornata.diffusion.adapter.dora`. LoKr adds (alpha / r)·(w1 ⊗ w2), where w1 and w2 may each be a product of two
thin matrices
(Yeh et al., "Navigating text-to-image customization", arXiv 2309.14859). The layers themselves are peft's.
"""

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import torch
from peft import LoKrConfig, LoraConfig, PeftConfig, inject_adapter_in_model
from peft.tuners.lora.layer import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from giornata.diffusion.adapter.adapter_plan import (
    UNET,
    AdapterSize,
    chosen_layers,
    exactly,
    peft_patterns,
    plan_faults,
    public_name,
    size_of,
    target_faults,
    usual_size,
)
from giornata.diffusion.adapter.dora import adopt_magnitudes, measure_magnitudes
from giornata.diffusion.adapter.dropping import Dropping
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.draws.randomness import uniform
from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.adapter import TEXT_TARGETS, AdapterType
from giornata.protocol.training.objective import has_dropout

__all__ = ["ADAPTER", "TEXT_TARGETS", "Adapters", "add_adapters", "take_off", "target_faults"]

ADAPTER = "giornata"
ZERO_AT_FIRST = (".lora_B.weight", ".lokr_w2", ".lokr_w2_b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """The trainable part of a job, fp32 whatever the base is.

    `parameters` maps `unet.…`, `text_encoder.text_model.…` and `text_encoder_2.text_model.…` (then peft's own
    key, such as `….lora_A.weight`) to parameters; the order is that of the sorted names. `rank` and `alpha` are those
    of layers that no pattern means. `dropping` is what the layers look at to leave something out. Within
    `swapped_in()` the models answer through them, without gradients; within `learning()` one forward pass and its
    backward pass go through them. peft's do both always. As a context manager it takes itself off at the end,
    whatever happened.
    """

    parameters: dict[str, nn.Parameter]
    rank: int
    alpha: float
    models: tuple[nn.Module, ...]
    swapped_in: Callable[[], AbstractContextManager[None]] = nullcontext
    learning: Callable[[], AbstractContextManager[None]] = nullcontext
    dropping: Dropping = field(default_factory=Dropping)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Copy the weights to the CPU, in fp32."""
        return {name: parameter.detach().cpu().clone() for name, parameter in self.parameters.items()}

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over weights. Raises ValueError unless names and shapes are exactly those of `parameters`."""
        wrong = sorted(set(tensors) ^ set(self.parameters))
        wrong += [name for name, value in self.parameters.items() if _shape_differs(tensors.get(name), value)]
        if wrong:
            raise ValueError(f"{len(wrong)} adapter tensors do not fit this model and rank, first: {wrong[0]}")
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(tensors[name])

    def remove(self) -> None:
        """Give the base back as it was. May be called again."""
        for model in self.models:
            take_off(model)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def add_adapters(
    base: BaseModel, spec: TrainSpec, layers: Collection[str] | None = None, *, dropping: Dropping | None = None
) -> Adapters:
    """Put freshly initialized adapters on the base, or on those of its layers that have these public names. They look
    at `dropping`, or at one of their own. Raises WorkloadFailed (BAD_SPEC) for unknown targets.

    The weights are a function of (spec.seed, name): the device, other adapters and the base's dtype have no
    part in it. When it fails, the base is left as it was.
    """
    faults = plan_faults(base.unet, base.text_encoders, spec)
    seed = spec.seed
    if seed is None:
        faults.append(Fault(where="spec.seed", message="is not set", hint="submission draws and records one"))
    if seed is None or faults:
        raise WorkloadFailed(Reason.BAD_SPEC, "; ".join(map(str, faults)), tuple(faults))
    models: dict[str, nn.Module] = {UNET: base.unet}
    if spec.train_text_encoder:
        models |= dict(zip(base.family.encoder_names, base.text_encoders, strict=True))
    try:
        named: dict[str, nn.Parameter] = {}
        for prefix, model in models.items():
            sizes = _sizes(prefix, model, spec, layers)
            if sizes or layers is None:  # peft refuses a model in which it finds nothing
                _put_on(model, sizes, spec)
            named |= {public_name(prefix, key): parameter for key, parameter in adapter_parameters(model)}
        parameters = {name: named[name] for name in sorted(named)}
        initialize(parameters, seed)
        dropping = Dropping() if dropping is None else dropping
        for prefix, model in models.items():
            measure_magnitudes(model, ADAPTER)
            if has_dropout(spec):
                _leave_out(prefix, model, dropping)
    except BaseException:
        for model in models.values():
            take_off(model)
        raise
    usual = usual_size(spec)
    return Adapters(
        parameters=parameters,
        rank=usual.rank,
        alpha=usual.alpha,
        models=tuple(models.values()),
        dropping=dropping,
    )


def _leave_out(prefix: str, model: nn.Module, dropping: Dropping) -> None:
    """Pass the output of each A of peft's layers through the layer's dropping."""
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLayer):
            of_layer = dropping.of_layer(public_name(prefix, name))
            drop = of_layer.of_channels if isinstance(layer.get_base_layer(), nn.Conv2d) else of_layer
            layer.lora_A[ADAPTER].register_forward_hook(lambda _, __, low, drop=drop: drop(low))


def adapter_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return adapter weights by the key under which peft stores them, which leaves the adapter's name out."""
    every = [(f"{key}.", value) for key, value in model.named_parameters() if f".{ADAPTER}." in f"{key}."]
    named = [(key.replace(f".{ADAPTER}.", ".").removesuffix("."), value) for key, value in every]
    return [(_stored(key), value) for key, value in named]


def _stored(key: str) -> str:
    magnitude = ".lora_magnitude_vector"
    return key.removesuffix(".weight") if key.endswith(f"{magnitude}.weight") else key


def take_off(model: nn.Module) -> None:
    """Put every adapted layer's original back into its place."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            parent_name, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent_name), child, layer.get_base_layer())
    if hasattr(model, "peft_config"):
        del model.peft_config


def _sizes(prefix: str, model: nn.Module, spec: TrainSpec, layers: Collection[str] | None) -> dict[str, AdapterSize]:
    """Return the model's layers to be adapted, by their names in it. `layers` are public names; None means all."""
    if prefix == UNET:
        names = chosen_layers(model, spec.target_modules, spec.lora_unet_blocks)
    else:
        names = chosen_layers(model, spec.text_encoder_target_modules)
    public = {name: public_name(prefix, name) for name in names}
    return {name: size_of(spec, each) for name, each in public.items() if layers is None or each in layers}


def _config(sizes: Mapping[str, AdapterSize], spec: TrainSpec) -> PeftConfig:
    ranks, alphas = peft_patterns(sizes, spec)
    usual, targets = usual_size(spec), exactly(sizes)
    if spec.adapter_type is AdapterType.LOKR:
        return LoKrConfig(
            r=usual.rank,
            alpha=usual.alpha,
            target_modules=targets,
            rank_pattern=ranks,
            alpha_pattern=alphas,
            decompose_both=spec.decompose_both,
            decompose_factor=spec.decompose_factor,
            init_weights=False,
        )
    return LoraConfig(
        r=usual.rank,
        lora_alpha=usual.alpha,
        target_modules=targets,
        rank_pattern=ranks,
        alpha_pattern=alphas,
        use_dora=spec.use_dora,
        init_lora_weights=False,
    )


def _put_on(model: nn.Module, sizes: Mapping[str, AdapterSize], spec: TrainSpec) -> None:
    # peft draws placeholder weights; they must not change the process's random state
    with torch.random.fork_rng(devices=[]):
        inject_adapter_in_model(_config(sizes, spec), model, adapter_name=ADAPTER)
    if spec.use_dora:
        adopt_magnitudes(model, ADAPTER)
    for _, parameter in adapter_parameters(model):
        parameter.data = parameter.data.float()
    dtype = model.dtype  # diffusers walks through all modules to answer
    for layer in model.modules():
        if isinstance(layer, BaseTunerLayer):
            layer.eval()  # as the base is: in training mode peft's LoKr draws a random number to drop itself out
            if dtype is not torch.float32:
                _compute_in(layer, dtype)


def _compute_in(layer: BaseTunerLayer, dtype: torch.dtype) -> None:
    """Have one layer multiply in the precision of the base. Its float32 weights would widen the products otherwise;
    the layers around it compute in their own precision."""
    plain = layer.forward

    def forward(inputs: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        with torch.autocast(inputs.device.type, dtype=dtype):
            answer: torch.Tensor = plain(inputs, *given, **named)
        return answer

    layer.forward = forward


def initialize(parameters: Mapping[str, nn.Parameter], seed: int) -> None:
    """Set one factor of each product to zero, the others uniform in ±1/sqrt(fan-in): kaiming_uniform_(a=sqrt(5)), as
    peft and LyCORIS have it, but a function of the name. Magnitudes are measured when the rest stands."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            if name.endswith(ZERO_AT_FIRST):
                parameter.zero_()
            elif not name.endswith(".lora_magnitude_vector"):
                bound = 1 / math.sqrt(math.prod(parameter.shape[1:]))
                values = uniform(seed, "lora-init", name, shape=tuple(parameter.shape))
                parameter.copy_((values * 2 - 1) * bound)
            parameter.requires_grad_(True)


def _shape_differs(found: torch.Tensor | None, parameter: nn.Parameter) -> bool:
    return found is not None and found.shape != parameter.shape
