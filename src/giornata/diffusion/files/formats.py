"""The two files that users load: kohya's names, and diffusers' own.

Both are made from the same adapter weights (`Adapters.tensors()`), and their bytes depend on nothing else but the
facts given: no time, no path, no attempt. Each is read back before it takes its name, through the very conversion
that diffusers loads it with, and refused when a tensor got lost on the way. There is cause: going through
`convert_state_dict_to_diffusers`, as diffusers' scripts do, loses all attention layers as soon as others are
adapted too (diffusers 0.42). So the diffusers file holds peft's own keys.

What diffusers 0.42 loads into SDXL: LoRA in both formats, DoRA in its own (of a kohya file it drops the magnitudes),
LoKr not at all; of kohya files also no text encoder whose attention is adapted without `out_proj`, by which it tells
the names apart. Such kohya files are right for those who read them by kohya's names, and are read back so.
"""

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

from giornata.diffusion.adapter.adapter_plan import exactly, peft_patterns
from giornata.diffusion.adapter.tokens import BUNDLE, apart, bundle
from giornata.diffusion.families import SDXL, Family
from giornata.diffusion.files.kohya_file import ALPHA, kohya_layers, kohya_parts, layer_of, split_name, to_kohya
from giornata.diffusion.files.lora_facts import LoraFacts, kohya_metadata
from giornata.diffusion.tensor_file import data_sha256, safetensors_bytes, write_durably
from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.training.file_names import embeddings_file, lora_file

Format = Literal["kohya", "diffusers"]
Dtype = Literal["float32", "float16", "bfloat16"]
FILE_NAMES: Mapping[Format, str] = {"kohya": lora_file("kohya", None), "diffusers": lora_file("diffusers", None)}
"""The file names of a job without an output_name."""
EMBEDDINGS_FILE_NAME = embeddings_file(None)
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


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
    """Write kohya's format: `lora_unet_…`, `lora_te1_…`, `lora_te2_…` (`lora_te_…` where there is one text encoder),
    each with lora_down, lora_up and alpha, or with LyCORIS's names for DoRA and LoKr; and new tokens as
    `bundle_emb.…`.

    `tensors` are named as `Adapters.tensors()` names them; `extra` is put into the metadata beside the ss_ and
    modelspec fields. Raises WorkloadFailed when a weight is not finite in `dtype`, or when reading back fails.
    """
    tensors, rows = apart(tensors)
    content = to_kohya(tensors, facts)
    alphas = {name: content.pop(name) for name in list(content) if name.endswith(ALPHA)}
    content = _cast(content, dtype) | alphas | bundle(_cast(rows, dtype), facts.spec)
    metadata = kohya_metadata(facts, data_sha256=data_sha256(content), convolutions=_kernels(tensors))
    return _write(path, content, {**metadata, **(extra or {})}, tensors, facts, kohya=not _diffusers_reads(tensors))


def write_diffusers(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    facts: LoraFacts,
    *,
    dtype: Dtype = "float16",
    extra: Mapping[str, str] | None = None,
) -> Path:
    """Write diffusers' format: peft's keys under `unet.`, `text_encoder.`, `text_encoder_2.`. Otherwise as
    `write_kohya`.

    Rank and alpha are in the metadata, where diffusers looks for them (`lora_adapter_metadata`).
    """
    tensors, _ = apart(tensors)
    if any(".lokr_" in name for name in tensors):
        message = "diffusers loads no LoKr into SDXL"
        fault = Fault(where="spec.output_formats", message=message, hint='write kohya: ["kohya"]')
        raise WorkloadFailed(Reason.BAD_SPEC, str(fault), (fault,))
    configs = {
        f"{prefix}.{key}": value
        for prefix in sorted({name.split(".")[0] for name in tensors})
        for key, value in _config(prefix, tensors, facts).items()
    }
    metadata = {"format": "pt", "lora_adapter_metadata": json.dumps(configs, sort_keys=True), **(extra or {})}
    content = {_diffusers_name(name): tensor for name, tensor in _cast(tensors, dtype).items()}
    return _write(path, content, metadata, content, facts)


def write_embeddings(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    *,
    dtype: Dtype = "float16",
    extra: Mapping[str, str] | None = None,
) -> Path:
    """Write the rows of new tokens as diffusers' advanced script does: `clip_l` and `clip_g`, each of N × E, for
    `load_textual_inversion` with the tokens <s0>, <s1> … Raises as `write_kohya`; ValueError when there are none."""
    _, rows = apart(tensors)
    if not rows:
        raise ValueError("there are no new tokens")
    content = _cast(rows, dtype)
    data = safetensors_bytes(content, {"format": "pt", **(extra or {})})
    read = load_bytes(data)
    if read.keys() != content.keys() or any(not torch.equal(read[name], content[name]) for name in content):
        raise WorkloadFailed(Reason.CRASHED, f"{path.name} does not read back as it was written")
    write_durably(path, data)
    return path


def lost_tensors(
    content: Mapping[str, torch.Tensor], names: Iterable[str], *, layers_per_block: int, family: Family = SDXL
) -> list[str]:
    """Return the names that would not arrive, or would arrive uninvited, were diffusers to load `content`.

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
    *,
    kohya: bool = False,
) -> Path:
    data = safetensors_bytes(content, metadata)
    read = load_bytes(data)
    wrong = [name for name, tensor in content.items() if name not in read or not torch.equal(tensor, read[name])]
    adapter = {name: tensor for name, tensor in read.items() if not name.startswith(BUNDLE)}
    depth, family = facts.layers_per_block, facts.family
    if kohya:
        layers = kohya_layers((layer_of(name) for name in tensors), layers_per_block=depth, family=family)
        split = [split_name(name) for name in kohya_parts(adapter)[0]]
        wrong += sorted({layers.get(layer, layer) + part for layer, part in split} ^ tensors.keys())
    else:
        wrong += lost_tensors(adapter, tensors, layers_per_block=depth, family=family)
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


def _config(prefix: str, tensors: Mapping[str, torch.Tensor], facts: LoraFacts) -> dict[str, Any]:
    """Return the LoraConfig arguments that diffusers gives to peft for one model."""
    start = f"{prefix}."
    layers = {layer_of(name) for name in tensors if name.startswith(start)}
    unet, spec = prefix == "unet", facts.spec
    targets: Any = sorted(facts.target_modules if unet else spec.text_encoder_target_modules)
    sizes = {layer.removeprefix(start).removeprefix("text_model."): facts.size(layer) for layer in layers}
    if unet and spec.lora_unet_blocks is not None:
        targets = exactly(sizes)
    config = {"r": facts.rank, "lora_alpha": facts.alpha, "target_modules": targets}
    if spec.use_dora:
        config["use_dora"] = True
    ranks, alphas = peft_patterns(sizes, spec)
    # A text encoder's names may have another level in front, by the version of transformers.
    named = {"rank_pattern": _anywhere(ranks), "alpha_pattern": _anywhere(alphas)}
    return config | {name: found for name, found in named.items() if found}


def _anywhere(patterns: Mapping[str, Any]) -> dict[str, Any]:
    return {pattern.removeprefix("^"): value for pattern, value in patterns.items()}


def _diffusers_reads(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Return True when diffusers loads these tensors from a kohya file."""
    attention = {name.split(".self_attn.")[1] for name in tensors if ".self_attn." in name}
    known = not attention or any(name.startswith("out_proj.") for name in attention)
    return known and all(name.endswith((".lora_A.weight", ".lora_B.weight")) for name in tensors)


def _diffusers_name(name: str) -> str:
    """Return the name under which diffusers' loaders look for the tensor. For magnitudes that is peft's key in the
    UNet, and the parameter's own name in a text encoder, which transformers loads (5.23)."""
    unet = name.startswith("unet.")
    return f"{name}.weight" if name.endswith(".lora_magnitude_vector") and not unet else name


def _kernels(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Return True when convolutions with a kernel larger than one pixel are adapted."""
    return any(tensor.ndim == 4 and tensor.shape[-1] > 1 for tensor in tensors.values())
