"""Starts an adapter from weights that were trained before: kohya's `network_weights`.

The layer's product stays what it was in the file, whatever rank and alpha the job has: a smaller rank is filled up
with fresh rows of A, whose columns of B are zero, and B takes the quotient of the scales. A DoRA that starts from a
LoRA takes its magnitudes from what that LoRA gives. Layers that the file does not have begin as always.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from giornata.diffusion.adapter.adapter_plan import UNET, layers_of, public_name, size_of
from giornata.diffusion.adapter.dora import measure_magnitudes
from giornata.diffusion.adapter.lora import ADAPTER, Adapters
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.files.kohya_file import MAGNITUDE, split_name
from giornata.diffusion.files.lora_file import ReadLora, for_model, read_lora
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.specs import TrainSpec

WHERE = "spec.init_lora"
SCALED = (".lora_B.weight", ".lokr_w2", ".lokr_w2_b")
SHOWN = 3

Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of an adapter's tensors, by their names."""


def start_from(path: Path, base: BaseModel, spec: TrainSpec, adapters: Adapters) -> None:
    """Load the file into adapters that are on the base. Raises InvalidInput with every fault, and then changes
    nothing: what cannot be read, layers that the job does not train, ranks that are too small, other kinds.
    """
    read = _read(path, base, {name: tuple(parameter.shape) for name, parameter in adapters.parameters.items()})
    weights = adapters.tensors() | _fitted(read, adapters, spec)
    adapters.load(weights)
    if spec.use_dora:
        for model in adapters.models:
            measure_magnitudes(model, ADAPTER)
        measured = adapters.tensors()
        lengths = {name: value.float() for name, value in read.tensors.items() if name.endswith(MAGNITUDE)}
        adapters.load(measured | lengths)


def check_start(path: Path, base: BaseModel, shapes: Shapes) -> None:
    """Check the file as `start_from` does, against adapters with tensors of these shapes, and load nothing."""
    _read(path, base, shapes)


def _read(path: Path, base: BaseModel, shapes: Shapes) -> ReadLora:
    depth = base.unet.config.layers_per_block
    file = read_lora(path, where=WHERE)
    read = for_model(file, public_layers(base), layers_per_block=depth, where=WHERE, family=base.family)
    if faults := fit_faults(read, shapes):
        raise InvalidInput(faults)
    return read


def fit_faults(read: ReadLora, shapes: Shapes) -> list[Fault]:
    """Return everything that keeps the file's weights out of adapters that have tensors of these shapes."""
    ours = {split_name(name)[0] for name in shapes}
    foreign = sorted(read.scales.keys() - ours)
    names = [name for name in read.tensors if split_name(name)[0] in ours]
    faults = []
    if foreign:
        hint = "name them in target_modules and lora_unet_blocks; train_text_encoder is for those of text encoders"
        faults.append(Fault(where=WHERE, message=f"adapts {_some(foreign)}, which this job does not", hint=hint))
    surplus = sorted(name for name in names if name not in shapes)
    if surplus:
        hint = "set adapter_type, use_dora, decompose_both, decompose_factor and rank as they were"
        faults.append(Fault(where=WHERE, message=f"is another kind of adapter: it has {_some(surplus)}", hint=hint))
    faults += _missing_faults(read, shapes)
    faults += _shape_faults(read, shapes, [name for name in names if name in shapes])
    return faults


def _missing_faults(read: ReadLora, shapes: Shapes) -> Iterable[Fault]:
    """Return faults for layers of which tensors are missing; only a DoRA's magnitudes can be made up."""
    wanted = [name for name in shapes if split_name(name)[0] in read.scales]
    missing = sorted(name for name in wanted if name not in read.tensors and not name.endswith(MAGNITUDE))
    if missing:
        hint = "set adapter_type, decompose_both, decompose_factor and rank as they were"
        yield Fault(where=WHERE, message=f"lacks {_some(missing)}", hint=hint)


def _shape_faults(read: ReadLora, shapes: Shapes, names: Iterable[str]) -> Iterable[Fault]:
    larger, other = {}, []
    for name in names:
        found, wanted = read.tensors[name].shape, shapes[name]
        axis = _rank_axis(name)
        if found == wanted:
            continue
        fits = axis is not None and len(found) == len(wanted) and found[axis] != wanted[axis]
        if not fits or any(a != b for n, (a, b) in enumerate(zip(found, wanted, strict=True)) if n != axis):
            other.append(f"{name} ({'x'.join(map(str, found))}, not {'x'.join(map(str, wanted))})")
        elif axis is not None and found[axis] > wanted[axis]:
            larger[split_name(name)[0]] = found[axis]
    if larger:
        message = f"has a higher rank than this job: {max(larger.values())}, in {_some(sorted(larger))}"
        yield Fault(
            where=WHERE, message=message, hint=f"set rank (or rank_pattern) to {max(larger.values())} or more"
        )
    if other:
        yield Fault(where=WHERE, message=f"was made for other layers: {_some(sorted(other))}", hint="check the base")


def _fitted(read: ReadLora, adapters: Adapters, spec: TrainSpec) -> dict[str, torch.Tensor]:
    """Return the file's weights in the job's shapes and scales, float32."""
    fresh, fitted = adapters.tensors(), {}
    for name, found in read.tensors.items():
        layer, part = split_name(name)
        if part == MAGNITUDE:
            continue
        size = size_of(spec, layer)
        factor = read.scales[layer] / (size.alpha / size.rank) if part in SCALED else 1.0
        fitted[name] = _filled_up(found.float() * factor, fresh[name], _rank_axis(name))
    return fitted


def _filled_up(value: torch.Tensor, fresh: torch.Tensor, axis: int | None) -> torch.Tensor:
    """Enlarge a factor to the size of `fresh` along the rank's axis: A with rows of `fresh`, B with zeros."""
    if axis is None or value.shape == fresh.shape:
        return value.contiguous()
    rest = fresh.narrow(axis, value.shape[axis], fresh.shape[axis] - value.shape[axis])
    return torch.cat([value, rest if axis == 0 else torch.zeros_like(rest)], dim=axis)


def _rank_axis(name: str) -> int | None:
    """Return the axis of the rank in a LoRA's factor. A LoKr's factors change with the rank altogether."""
    if name.endswith(".lora_A.weight"):
        return 0
    return 1 if name.endswith(".lora_B.weight") else None


def public_layers(base: BaseModel) -> list[str]:
    """Return the public names of all layers that can be adapted, without the adapters that some of them have."""
    models = [(UNET, base.unet), *zip(base.family.encoder_names, base.text_encoders, strict=True)]
    named = [(prefix, name.removesuffix(".base_layer")) for prefix, model in models for name in layers_of(model)]
    return [public_name(prefix, name) for prefix, name in named if f".{ADAPTER}" not in name]


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
