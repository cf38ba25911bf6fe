"""Reads a LoRA file as what pictures are drawn with: factors for layers of one base model.

Rows can have what is a low-rank update: LoRA of any naming that `giornata.diffusion.files.lora_file` reads, and LoKr
whose update has a rank of MOST_RANK or less. `giornata.domain.generation.drawable_loras` tells what is refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from giornata.diffusion.adapter.adapter_plan import UNET, layers_of, public_name
from giornata.diffusion.adapter.row_places import layer_shape
from giornata.diffusion.adapter.tokens import BUNDLE, TOKENS, apart, bundle
from giornata.diffusion.base.low_rank import LowRank
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.encode.prompt_embeds import TextualInversion
from giornata.diffusion.encode.text_loras import TextLora
from giornata.diffusion.families import FAMILIES, Family
from giornata.diffusion.files.export import read_adapter
from giornata.diffusion.files.lora_algebra import LoraFactors, Update
from giornata.diffusion.files.lora_file import SHOWN, LoraFile, for_model, read_lora
from giornata.diffusion.files.lora_tool import updates_of
from giornata.diffusion.files.textual_inversion import bundled_words, inversion_of
from giornata.diffusion.tensor_file import sha256_of_file
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.generation.drawable_loras import MOST_RANK, kind_faults, rank_fault

NEGLIGIBLE = 1e-9
"""The share of the largest singular value below which one is rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLora:
    """A LoRA for `RowAdapters` and `PromptEncoder`. `unet` has factors by the layers' names in the UNet. `words` are
    the textual inversions that came in the file, which a prompt needs to have their effect."""

    sha256: str
    unet: Mapping[str, LowRank]
    text: TextLora
    words: tuple[TextualInversion, ...] = ()


def read_row_lora(path: Path, base: BaseModel, *, where: str | None = None) -> RowLora:
    """Read the file for this base. Raises InvalidInput, at `where`, with every fault: a LoRA of another family,
    layers that the base does not have or has in another size, a kind that rows cannot have, values that are not
    finite."""
    where, sha256 = where or str(path), sha256_of_file(path)
    file = read_lora(path, where=where)
    layers = _layers(base)
    faults = [*_family_faults(file, base, where), *kind_faults((*file.tensors, *file.others), where=where)]
    updates: dict[str, Update] = {}
    if not faults:
        updates, faults = _updates(file, base, layers, where)
    found: dict[str, LowRank] = {}
    faults += _size_faults(updates, layers, where)
    if not faults:
        for name, update in updates.items():
            factors = _factors(update, layers[name].layer)
            found[name] = factors
            faults += [rank_fault(name, factors.rank, where=where)] if factors.rank > MOST_RANK else []
    if faults:
        raise InvalidInput(faults)
    by_model = [
        {layers[name].name: factors for name, factors in found.items() if layers[name].model is model}
        for model in (base.unet, *base.text_encoders)
    ]
    others = _with_words(file)
    words = [inversion_of(others, word, base, sha256=sha256, where=where) for word in bundled_words(others)]
    text = TextLora(key=sha256, encoders=tuple(by_model[1:]))
    return RowLora(sha256=sha256, unet=by_model[0], text=text, words=tuple(words))


def _with_words(file: LoraFile) -> Mapping[str, torch.Tensor]:
    """Return the file's further tensors, with the new tokens of a checkpoint under the words that the job had."""
    _, rows = apart(file.others)
    if not rows:
        return file.others
    spec, _, _ = read_adapter(file.path)
    return bundle(rows, spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamedLayer:
    model: nn.Module
    name: str
    layer: nn.Module


def _layers(base: BaseModel) -> dict[str, _NamedLayer]:
    """Return all layers that can be adapted, by their public names."""
    models = [(UNET, base.unet), *zip(base.family.encoder_names, base.text_encoders, strict=True)]
    return {
        public_name(prefix, name): _NamedLayer(model=model, name=name, layer=model.get_submodule(name))
        for prefix, model in models
        for name in layers_of(model)
    }


def _family_faults(file: LoraFile, base: BaseModel, where: str) -> Iterator[Fault]:
    family = file.family or _told_family(file.metadata)
    if family is not None and family is not base.family:
        message = f"was trained on {family.title}, and the base model is of {base.family.title}"
        yield Fault(where=where, message=message, hint="take a LoRA of the same kind of base model")


def _told_family(metadata: Mapping[str, str]) -> Family | None:
    """Return the family that the file's metadata name; None when they name none that is known here."""
    version, architecture = metadata.get("ss_base_model_version", ""), metadata.get("modelspec.architecture", "")
    return next(
        (
            family
            for family in FAMILIES
            if version == family.base_model_version or architecture == f"{family.architecture}/lora"
        ),
        None,
    )


def _updates(
    file: LoraFile, base: BaseModel, layers: Mapping[str, _NamedLayer], where: str
) -> tuple[dict[str, Update], list[Fault]]:
    """Return the updates by public names of layers, and the faults of the file."""
    depth = base.unet.config.layers_per_block
    others = {key: tensor for key, tensor in file.others.items() if not key.startswith((BUNDLE, TOKENS))}
    try:
        read = for_model(
            replace(file, others=others), layers, layers_per_block=depth, where=where, family=base.family
        )
    except InvalidInput as error:
        return {}, list(error.faults)
    try:
        updates = updates_of(replace(file, tensors=read.tensors, scales=read.scales, others={}))
    except InvalidInput as error:
        found = error.faults
        return {}, [Fault(where=where, message=f"{each.where} {each.message}", hint=each.hint) for each in found]
    if left := sorted(read.scales.keys() - updates.keys()):
        message = f"has factors that give no update, in {_some(left)}"
        return {}, [Fault(where=where, message=message, hint="is the file whole?")]
    return updates, []


def _size_faults(updates: Mapping[str, Update], layers: Mapping[str, _NamedLayer], where: str) -> Iterator[Fault]:
    sizes = {name: (update.size, layer_shape(layers[name].layer)) for name, update in updates.items()}
    wrong = [
        f"{name} ({_times(found)}, not {_times(wanted)})"
        for name, (found, wanted) in sizes.items()
        if _without_points(found) != _without_points(wanted)
    ]
    if wrong:
        message = f"was made for layers of other sizes: {_some(wrong)}"
        yield Fault(where=where, message=message, hint="take a LoRA of the same kind of base model")


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _without_points(size: tuple[int, ...]) -> tuple[int, ...]:
    """Return a size without the kernel of a convolution that looks at one place: some files have linear layers so."""
    return size[:2] if size[2:] == (1, 1) else size


def _times(size: tuple[int, ...]) -> str:
    return " x ".join(map(str, size))


def _factors(update: Update, layer: nn.Module) -> LowRank:
    """Return the factors in the shapes of the layer."""
    outputs, *inputs = layer_shape(layer)
    if isinstance(update, LoraFactors):
        down, up, scale = update.down, update.up, update.scale
    else:
        scale = 1.0
        outputs_OR, values_R, inputs_RI = update.factorized()
        kept = int((values_R > NEGLIGIBLE * values_R.max()).sum())
        root_R = values_R[:kept].sqrt()
        down, up = (root_R[:, None] * inputs_RI[:kept]).float(), (outputs_OR[:, :kept] * root_R).float()
    return LowRank(down=down.reshape(-1, *inputs), up_OR=up.reshape(outputs, -1), scale=scale)
