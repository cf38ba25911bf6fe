"""The two files that users load: kohya's names, and diffusers' own.

Both are made from the same adapter weights (`Adapters.tensors()`), and their bytes depend on nothing else but the
facts given: no time, no path, no attempt. Each is read back before it takes its name, through the very conversion
that diffusers loads it with, and refused when a tensor got lost on the way. There is cause: going through
`convert_state_dict_to_diffusers`, as diffusers' scripts do, loses all attention layers as soon as others are
adapted too (diffusers 0.42). So the diffusers file holds peft's own keys.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
from diffusers.utils import (
    convert_state_dict_to_diffusers,
    convert_state_dict_to_peft,
    convert_unet_state_dict_to_peft,
)
from safetensors.torch import load as load_bytes

from giornata.diffusion.families import SDXL, Family
from giornata.diffusion.lora import TEXT_TARGETS
from giornata.diffusion.lora_facts import LoraFacts, kohya_metadata
from giornata.diffusion.safefile import data_of, safetensors_bytes, write_durably
from giornata.domain.errors import Fault
from giornata.domain.reasons import Reason
from giornata.engine.workload import WorkloadFailed

Format = Literal["kohya", "diffusers"]
Dtype = Literal["float32", "float16", "bfloat16"]
FILE_NAMES: Mapping[Format, str] = {
    "kohya": "lora-kohya.safetensors",
    "diffusers": "pytorch_lora_weights.safetensors",
}
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_SUFFIXES = {".lora_A.weight": ".lora_down.weight", ".lora_B.weight": ".lora_up.weight"}


def write_lora(
    kind: Format,
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    facts: LoraFacts,
    *,
    dtype: Dtype = "float16",
    extra: Mapping[str, str] | None = None,
) -> Path:
    """Write one of the two formats."""
    write = write_kohya if kind == "kohya" else write_diffusers
    return write(path, tensors, facts, dtype=dtype, extra=extra)


def write_kohya(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    facts: LoraFacts,
    *,
    dtype: Dtype = "float16",
    extra: Mapping[str, str] | None = None,
) -> Path:
    """kohya's format: `lora_unet_…`, `lora_te1_…`, `lora_te2_…` (`lora_te_…` where there is one text encoder), each
    with lora_down, lora_up and alpha.

    `tensors` are named as `Adapters.tensors()` names them; `extra` is put into the metadata beside the ss_ and
    modelspec fields. Raises WorkloadFailed when a weight is not finite in `dtype`, or when reading back fails.
    """
    content: dict[str, torch.Tensor] = {}
    for name, tensor in _cast(tensors, dtype).items():
        layer, suffix = _split(name)
        target = facts.family.kohya_name(layer, layers_per_block=facts.layers_per_block)
        content[target + _SUFFIXES[suffix]] = tensor
        content[f"{target}.alpha"] = torch.tensor(facts.alpha, dtype=torch.float32)
    data = data_of(safetensors_bytes(content, {}))
    metadata = kohya_metadata(facts, data_sha256=hashlib.sha256(data).hexdigest(), convolutions=_kernels(tensors))
    return _write(path, content, {**metadata, **(extra or {})}, tensors, facts)


def write_diffusers(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    facts: LoraFacts,
    *,
    dtype: Dtype = "float16",
    extra: Mapping[str, str] | None = None,
) -> Path:
    """diffusers' format: peft's keys under `unet.`, `text_encoder.`, `text_encoder_2.`. Otherwise as `write_kohya`.

    Rank and alpha are in the metadata, where diffusers looks for them (`lora_adapter_metadata`).
    """
    configs = {
        f"{prefix}.{key}": value
        for prefix in sorted({name.split(".")[0] for name in tensors})
        for key, value in _config(prefix, facts).items()
    }
    metadata = {"format": "pt", "lora_adapter_metadata": json.dumps(configs, sort_keys=True), **(extra or {})}
    return _write(path, _cast(tensors, dtype), metadata, tensors, facts)


def lost_tensors(
    content: Mapping[str, torch.Tensor], names: Iterable[str], *, layers_per_block: int, family: Family = SDXL
) -> list[str]:
    """Names that would not arrive, or would arrive uninvited, were diffusers to load `content`.

    Follows `load_lora_weights` of the family's pipeline: to one dictionary, then each model's part to peft's keys.
    """
    loaded, _ = family.pipeline_class().lora_state_dict(
        dict(content), unet_config=SimpleNamespace(layers_per_block=layers_per_block)
    )
    arrived: set[str] = set()
    for prefix in ("unet", *family.encoder_names):
        start = f"{prefix}."
        part = {key.removeprefix(start): value for key, value in loaded.items() if key.startswith(start)}
        if not part:
            continue
        if prefix != "unet":
            part = convert_state_dict_to_peft(convert_state_dict_to_diffusers(part))
        elif "lora_A" not in next(iter(part)):
            part = convert_unet_state_dict_to_peft(part)
        arrived |= {start + key for key in part}
    return sorted(arrived ^ set(names))


def _write(
    path: Path,
    content: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str],
    tensors: Mapping[str, torch.Tensor],
    facts: LoraFacts,
) -> Path:
    data = safetensors_bytes(content, metadata)
    read = load_bytes(data)
    wrong = [name for name, tensor in content.items() if name not in read or not torch.equal(tensor, read[name])]
    wrong += lost_tensors(read, tensors, layers_per_block=facts.layers_per_block, family=facts.family)
    if wrong:
        message = f"{path.name} would lose {len(wrong)} of {len(tensors)} tensors when loaded, first {wrong[0]}"
        raise WorkloadFailed(Reason.CRASHED, message)
    write_durably(path, data)
    return path


def _cast(tensors: Mapping[str, torch.Tensor], dtype: Dtype) -> dict[str, torch.Tensor]:
    cast = {name: tensor.detach().cpu().to(_DTYPES[dtype]) for name, tensor in tensors.items()}
    broken = [name for name, tensor in cast.items() if not bool(torch.isfinite(tensor).all())]
    if broken:
        fault = Fault(
            where="spec.output_dtype",
            message=f"{len(broken)} tensors are not finite as {dtype}, first {broken[0]}",
            hint="write float32 or bfloat16; if that does not help, the learning rate was too high",
        )
        raise WorkloadFailed(Reason.BAD_SPEC, str(fault), (fault,))
    return cast


def _split(name: str) -> tuple[str, str]:
    """`unet.….to_q.lora_A.weight` → (`unet.….to_q`, `.lora_A.weight`)."""
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix), suffix
    raise ValueError(f"{name} is not the name of a LoRA weight")


def _config(prefix: str, facts: LoraFacts) -> dict[str, Any]:
    targets = facts.target_modules if prefix == "unet" else TEXT_TARGETS
    return {"r": facts.rank, "lora_alpha": facts.alpha, "target_modules": sorted(targets)}


def _kernels(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether convolutions with a kernel larger than one pixel are adapted."""
    return any(tensor.ndim == 4 and tensor.shape[-1] > 1 for tensor in tensors.values())
