"""LoRA adapters on a frozen base: put on, named, taken off again.

Shapes: r rank, I inputs, O outputs of the adapted layer. A is r × I (r × I × k × k on a convolution), B is O × r
(O × r × 1 × 1). The layer gives W·x + (alpha / r)·B·A·x (Hu et al., "LoRA", arXiv 2106.09685).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from giornata.diffusion.lora_facts import effective_alpha
from giornata.diffusion.models import BaseModel
from giornata.diffusion.randomness import uniform
from giornata.domain.errors import Fault
from giornata.domain.reasons import Reason
from giornata.engine.workload import WorkloadFailed
from giornata.protocol.specs import TrainSpec

ADAPTER = "giornata"
TEXT_TARGETS = ("q_proj", "k_proj", "v_proj", "out_proj")
UNET, TEXT_ENCODERS = "unet", ("text_encoder", "text_encoder_2")
# Newer versions of transformers dropped this level from one of the two encoders. Names must not depend on it.
TEXT_ROOT = "text_model."


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """The trainable part of a job, fp32 whatever the base is.

    `parameters` maps `unet.…`, `text_encoder.text_model.…` and `text_encoder_2.text_model.…` (then peft's own
    key, `….lora_A.weight`) to parameters; the order is that of the sorted names. As a context manager it takes
    itself off at the end, whatever happened.
    """

    parameters: dict[str, nn.Parameter]
    rank: int
    alpha: float
    models: tuple[nn.Module, ...]

    @property
    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """The parameters of "unet" and, when they are trained, "text_encoders": they learn at different rates."""
        groups: dict[str, list[nn.Parameter]] = {}
        for name, parameter in self.parameters.items():
            groups.setdefault(UNET if name.startswith("unet.") else "text_encoders", []).append(parameter)
        return groups

    def tensors(self) -> dict[str, torch.Tensor]:
        """Copies of the weights on the CPU, fp32."""
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


def add_adapters(base: BaseModel, spec: TrainSpec) -> Adapters:
    """Put freshly initialised adapters on the base. Raises WorkloadFailed (BAD_SPEC) for unknown targets.

    The weights are a function of (spec.seed, name): the device, other adapters and the base's dtype have no
    part in it. When it fails, the base is left as it was.
    """
    faults = target_faults(base.unet, spec.target_modules)
    seed = spec.seed
    if seed is None:
        faults.append(Fault(where="spec.seed", message="is not set", hint="submission draws and records one"))
    if seed is None or faults:
        raise WorkloadFailed(Reason.BAD_SPEC, "; ".join(map(str, faults)), tuple(faults))
    targets: dict[str, tuple[nn.Module, tuple[str, ...]]] = {UNET: (base.unet, spec.target_modules)}
    if spec.train_text_encoder:
        targets |= {
            name: (model, TEXT_TARGETS) for name, model in zip(TEXT_ENCODERS, base.text_encoders, strict=True)
        }
    models = tuple(model for model, _ in targets.values())
    alpha = effective_alpha(spec)
    try:
        named: dict[str, nn.Parameter] = {}
        for prefix, (model, suffixes) in targets.items():
            _put_on(model, suffixes, rank=spec.rank, alpha=alpha)
            named |= {public_name(prefix, key): parameter for key, parameter in adapter_parameters(model)}
        parameters = {name: named[name] for name in sorted(named)}
        initialise(parameters, seed)
    except BaseException:
        for model in models:
            take_off(model)
        raise
    return Adapters(parameters=parameters, rank=spec.rank, alpha=alpha, models=models)


def adapter_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Adapter weights by peft's key, which leaves the adapter's name out."""
    infix = f".{ADAPTER}."
    return [(key.replace(infix, "."), value) for key, value in model.named_parameters() if infix in key]


def public_name(prefix: str, key: str) -> str:
    """`unet.<key>` or `text_encoder….text_model.<key>`."""
    if prefix != UNET and not key.startswith(TEXT_ROOT):
        key = TEXT_ROOT + key
    return f"{prefix}.{key}"


def take_off(model: nn.Module) -> None:
    """Put every adapted layer's original back into its place."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            parent_name, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent_name), child, layer.get_base_layer())
    if hasattr(model, "peft_config"):
        del model.peft_config


def target_faults(unet: nn.Module, targets: tuple[str, ...]) -> list[Fault]:
    """One fault for all suffixes that name no layer that LoRA can adapt; it says which there are."""
    layers = [name for name, layer in unet.named_modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    others = [name for name, layer in unet.named_modules() if not isinstance(layer, (nn.Linear, nn.Conv2d))]
    unknown = [target for target in targets if not any(_matches(name, target) for name in layers)]
    wider = [target for target in targets if any(_matches(name, target) for name in others)]
    faults = []
    known = ", ".join(sorted({_suffix(name) for name in layers}))
    if nothing := [target for target in unknown if target not in wider]:
        message = "no layer of the UNet is called " + ", ".join(nothing)
        faults.append(Fault(where="spec.target_modules", message=message, hint=f"there are {known}"))
    if wider:
        message = ", ".join(wider) + " names more than single linear or convolution layers"
        faults.append(Fault(where="spec.target_modules", message=message, hint=f"there are {known}"))
    return faults


def _matches(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _suffix(name: str) -> str:
    """The shortest end of a name that starts with a word rather than a number: `to_out.0`, `net.0.proj`, `to_q`."""
    parts = name.split(".")
    start = len(parts) - 1
    while start > 0 and (parts[start].isdigit() or (parts[start] == "proj" and parts[start - 1].isdigit())):
        start -= 1
    return ".".join(parts[start:])


def _put_on(model: nn.Module, suffixes: tuple[str, ...], *, rank: int, alpha: float) -> None:
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(suffixes), init_lora_weights=False)
    # peft draws placeholder weights; the job's random state, if anybody has one, is none of its business
    with torch.random.fork_rng(devices=[]):
        inject_adapter_in_model(config, model, adapter_name=ADAPTER)
    for _, parameter in adapter_parameters(model):
        parameter.data = parameter.data.float()


def initialise(parameters: Mapping[str, nn.Parameter], seed: int) -> None:
    """A uniform in ±1/sqrt(fan-in), B zero: peft's kaiming_uniform_(a=sqrt(5)), as a function of the name."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            if ".lora_A." in name:
                bound = 1 / math.sqrt(math.prod(parameter.shape[1:]))
                values = uniform(seed, "lora-init", name, shape=tuple(parameter.shape))
                parameter.copy_((values * 2 - 1) * bound)
            else:
                parameter.zero_()
            parameter.requires_grad_(True)


def _shape_differs(found: torch.Tensor | None, parameter: nn.Parameter) -> bool:
    return found is not None and found.shape != parameter.shape
