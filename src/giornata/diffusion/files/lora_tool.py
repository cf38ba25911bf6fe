"""Inspects, resizes and merges LoRA files. `giornata lora` runs this in a process of its own.

    python -m giornata.diffusion.files.lora_tool REPORT REQUEST

    {"command": "inspect", "file": "A"}
    {"command": "resize", "file": "A", "out": "B", "rank": 8}
    {"command": "merge", "files": [["A", 0.7], ["B", 0.3]], "out": "C"}

The request is one of these JSON objects. The report is one, too: with faults in the input it is {"faults": […]}, and
the exit code is 2.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from giornata.diffusion.adapter.tokens import BUNDLE, TOKENS
from giornata.diffusion.families import SD15, SDXL, Family
from giornata.diffusion.families.sdxl import SDXL_LAYERS_PER_BLOCK, layers_per_block_of
from giornata.diffusion.files.lora_algebra import (
    Cut,
    LokrFactors,
    LoraFactors,
    Method,
    Resized,
    Update,
    merge,
    resize,
)
from giornata.diffusion.files.lora_file import LoraFile, read_lora
from giornata.diffusion.files.lora_rewrite import (
    DTYPES,
    facts_shown,
    merged_metadata,
    resized_metadata,
    write_lora_file,
)
from giornata.diffusion.tensor_file import sha256_of_file
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.generation.drawable_loras import OTHER_KINDS

A, B = ".lora_A.weight", ".lora_B.weight"
SD15_NAMES = ("lora_te_", "lora_unet_down_blocks_", "lora_unet_mid_block_", "lora_unet_up_blocks_")
CONVOLUTION = re.compile(r".*(conv(1|2|_in|_out|_shortcut)?|_op|in_layers_2|out_layers_3|skip_connection)")
PROJECTION = re.compile(r"lora_unet_(down_blocks|mid_block|up_blocks)_.*_proj_(in|out)")
"""Convolutions in Stable Diffusion 1.5, whose names these are."""
PARTS = {
    "lora_unet_": "unet",
    "lora_te1_": "text_encoder",
    "lora_te_": "text_encoder",
    "lora_te2_": "text_encoder_2",
    "unet.": "unet",
    "text_encoder.": "text_encoder",
    "text_encoder_2.": "text_encoder_2",
}
HINTS = {
    "DoRA": "its update depends on the base model's weights: diffusers' fuse_lora puts it into a base, and "
    "giornata train --init-lora goes on from it",
    "LoKr": "a file does not tell the kernels of convolutions whose second factor is a product, and cores (Tucker) "
    "are not known here: giornata train --init-lora goes on from it",
}


# ---- the three commands


def inspect_file(path: Path) -> dict[str, Any]:
    """Report what a file holds, and how much it changes. Raises InvalidInput."""
    file = read_lora(path)
    updates = updates_of(file)
    spectra = {name: layer.factorized()[1] for name, layer in updates.items()}
    norms = {name: float(values.norm()) for name, values in spectra.items()}
    strongest = sorted(norms, key=lambda name: (-norms[name], name))[:5]
    most = Cut(rank=10**6, method=Method.SV_FRO, target=0.9)
    lokr = any(isinstance(layer, LokrFactors) for layer in updates.values())
    return {
        **_facts_of_file(file.path, file.naming, updates),
        "kind": ", ".join(dict.fromkeys([*(["LoKr"] if lokr else []), *_other_kinds(file, updates)])) or "LoRA",
        "dtype": str(file.dtype).removeprefix("torch."),
        "parameters": sum(layer.numbers for layer in updates.values()),
        "layers": dict(Counter(_part(name) for name in updates)),
        "alphas": _counts(
            round(layer.scale * layer.rank, 4) for layer in updates.values() if isinstance(layer, LoraFactors)
        ),
        "embeddings": sorted(name for name in file.others if name.startswith((BUNDLE, TOKENS))),
        "rank_for_90_percent": max((most.kept(each) for each in spectra.values()), default=0),
        "norm": float(torch.tensor(list(norms.values())).double().norm()) if norms else 0.0,
        "strongest": [{"layer": name, "norm": norms[name]} for name in strongest],
        "facts": facts_shown(file.metadata),
        "metadata": dict(sorted(file.metadata.items())),
    }


def resize_file(
    path: Path, out: Path, cut: Cut, *, alpha: float | None = None, dtype: str | None = None
) -> dict[str, Any]:
    """Write `path` with lower ranks to `out`. Raises InvalidInput.

    `alpha` is how scale and factors share one update, which it does not change; without it, alpha / rank stays where
    all layers have the same rank.
    """
    file = read_lora(path)
    [updates] = _plain_updates([file])
    resized = {name: resize(layer, cut) for name, layer in updates.items()}
    metadata = resized_metadata(file, cut, alpha=alpha) | _module([updates])
    chosen = DTYPES.get(dtype or "", file.dtype)
    before = {"ranks_before": _counts(layer.rank for layer in updates.values())}
    return _written(out, file.naming, resized, file.others, metadata, dtype=chosen, alpha=alpha) | before


def merge_files(
    paths: Sequence[Path], weights: Sequence[float], out: Path, *, rank: int | None = None, dtype: str | None = None
) -> dict[str, Any]:
    """Write the weighted sum of LoRAs to `out`; exact, or of the rank given. Raises InvalidInput."""
    files = [read_lora(path) for path in paths]
    updates = _plain_updates(files)
    if rank is None:
        _refuse_full_ranks(files, updates)
    diffusers = all(file.naming == "diffusers" for file in files)
    family = _family_of(files)
    named = [
        layers if diffusers or file.naming == "kohya" else in_kohya_names(file, layers, family)
        for file, layers in zip(files, updates, strict=True)
    ]
    _check_sizes(files, named)
    made = merge(list(zip(named, weights, strict=True)), None if rank is None else Cut(rank=rank))
    naming = "diffusers" if diffusers else "kohya"
    metadata = merged_metadata(files, weights, rank=rank, naming=naming) | _module(updates)
    widest = max((file.dtype for file in files), key=lambda each: each.itemsize)
    return _written(out, naming, made, _embeddings(files), metadata, dtype=DTYPES.get(dtype or "", widest))


COMMANDS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "inspect": lambda file: inspect_file(Path(file)),
    "resize": lambda file, out, alpha=None, dtype=None, **cut: resize_file(
        Path(file), Path(out), Cut(**cut | {"method": Method(cut.get("method", "fixed"))}), alpha=alpha, dtype=dtype
    ),
    "merge": lambda files, out, rank=None, dtype=None: merge_files(
        [Path(path) for path, _ in files], [weight for _, weight in files], Path(out), rank=rank, dtype=dtype
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 when it is done, 2 when the input was wrong."""
    report, request = arguments if arguments is not None else sys.argv[1:]
    fields = json.loads(request)
    try:
        made = COMMANDS[fields.pop("command")](**fields)
    except InvalidInput as error:
        Path(report).write_text(json.dumps({"faults": [asdict(each) for each in error.faults]}))
        sys.stderr.write(f"{error}\n")
        return 2
    Path(report).write_text(json.dumps(made))
    return 0


# ---- from a file's tensors to updates


def updates_of(file: LoraFile) -> dict[str, Update]:
    """Collect the layers that can be computed with: plain LoRA's, and LoKr's whose kernels are known.

    A layer with magnitudes (DoRA), with a factor too few or with values that are not finite stays out.
    Raises InvalidInput for LoRA's factors that do not belong together.
    """
    updates: dict[str, Update] = {}
    faults: list[Fault] = []
    for name, parts in file.layers().items():
        if A in parts and parts.keys() <= {A, B}:
            faults += _factor_faults(f"{file.path.name}: {name}", parts)
            if B in parts:
                updates[name] = LoraFactors(down=parts[A], up=parts[B], scale=file.scales[name])
        elif A not in parts and (lokr := _lokr(file, name, parts)) is not None:
            updates[name] = lokr
    if faults:
        raise InvalidInput(faults)
    return updates


def _factor_faults(where: str, parts: Mapping[str, torch.Tensor]) -> list[Fault]:
    down, up = parts[A], parts.get(B)
    if up is None:
        return [
            Fault(where=where, message="has .lora_down.weight and no .lora_up.weight", hint="the file is damaged")
        ]
    if down.ndim not in {2, 4} or up.ndim != down.ndim or up.shape[1] != down.shape[0]:
        message = f"has factors of shapes {tuple(up.shape)} and {tuple(down.shape)}, which give no product"
        return [Fault(where=where, message=message, hint="the file is damaged")]
    if not (torch.isfinite(down).all() and torch.isfinite(up).all()):
        return [Fault(where=where, message="holds values that are not finite", hint="take an earlier checkpoint")]
    return []


def _lokr(file: LoraFile, name: str, parts: Mapping[str, torch.Tensor]) -> LokrFactors | None:
    """Return the factors of one layer of a LoKr. None where the file does not tell the kernel of a convolution, or
    has a core (Tucker)."""
    first, second = _product(parts, ".lokr_w1"), _product(parts, ".lokr_w2")
    if first is None or second is None or f"{name}.lokr_t2" in file.others or not all(".lokr_" in p for p in parts):
        return None
    if second.ndim != 4 and (CONVOLUTION.fullmatch(name) or PROJECTION.fullmatch(name)):
        return None
    if not (bool(torch.isfinite(first).all()) and bool(torch.isfinite(second).all())):
        return None
    numbers = sum(part.numel() for part in parts.values())
    return LokrFactors(first=first, second=second, scale=file.scales[name], numbers=numbers)


def _product(parts: Mapping[str, torch.Tensor], name: str) -> torch.Tensor | None:
    if name in parts:
        return parts[name].double()
    left, right = parts.get(f"{name}_a"), parts.get(f"{name}_b")
    if left is None or right is None or left.shape[1] != right.shape[0]:
        return None
    return left.double() @ right.double().flatten(1)


def _other_kinds(file: LoraFile, updates: Mapping[str, Update]) -> list[str]:
    """Name the kinds of what cannot be computed with, such as DoRA."""
    left = [name + part for name, parts in file.layers().items() if name not in updates for part in parts]
    found = set()
    for name in (*left, *file.others):
        kinds = {kind for mark, kind in OTHER_KINDS.items() if mark in name}
        found |= kinds or (set() if name.startswith((BUNDLE, TOKENS)) or name in left else {"something unknown"})
    return sorted(found)


def _plain_updates(files: Sequence[LoraFile]) -> list[dict[str, Update]]:
    """Return the updates of each file. Raises InvalidInput for files with more in them than can be computed with."""
    every = [updates_of(file) for file in files]
    faults = [
        Fault(
            where=file.path.name,
            message=f"is not a plain LoRA: it holds {', '.join(kinds)}",
            hint="; ".join(HINTS[kind] for kind in kinds if kind in HINTS)
            or "only LoRA's up and down factors, and LoKr's, add up and can be resized",
        )
        for file, updates in zip(files, every, strict=True)
        if (kinds := _other_kinds(file, updates))
    ]
    if faults:
        raise InvalidInput(faults)
    return every


# ---- names and checks of a merge


def _family_of(files: Iterable[LoraFile]) -> Family:
    """Find the family by the names of kohya's files. For Stable Diffusion 1.5 these are diffusers' own with
    underscores, and there is one text encoder."""
    names = [name for file in files if file.naming == "kohya" for name in file.scales]
    if any(name.startswith(("lora_te1_", "lora_te2_")) for name in names):
        return SDXL
    return SD15 if any(name.startswith(SD15_NAMES) for name in names) else SDXL


def in_kohya_names(file: LoraFile, layers: Mapping[str, Update], family: Family = SDXL) -> dict[str, Update]:
    """Rename a diffusers file's layers to kohya's names. Raises InvalidInput for layers that the family lacks."""
    depth = layers_per_block_of(layers) or SDXL_LAYERS_PER_BLOCK
    try:
        return {family.kohya_name(name, layers_per_block=depth): layer for name, layer in layers.items()}
    except KeyError as error:
        message = f"has a layer that no {family.title} has: {error.args[0]}"
        hint = "convert it first, or merge files of one naming"
        raise InvalidInput([Fault(where=str(file.path), message=message, hint=hint)]) from None


def _refuse_full_ranks(files: Sequence[LoraFile], updates: Sequence[Mapping[str, Update]]) -> None:
    """Raise InvalidInput for LoKr files: a sum of these that loses nothing would be as large as the model."""
    faults = [
        Fault(
            where=file.path.name,
            message="is a LoKr, whose update has a high rank",
            hint="name the rank of the sum, such as --rank 64",
        )
        for file, layers in zip(files, updates, strict=True)
        if any(isinstance(layer, LokrFactors) for layer in layers.values())
    ]
    if faults:
        raise InvalidInput(faults)


def _check_sizes(files: Sequence[LoraFile], named: Sequence[Mapping[str, Update]]) -> None:
    """Raise InvalidInput for layers whose sizes differ: the files are of different models."""
    first: dict[str, tuple[str, tuple[int, ...]]] = {}
    faults = []
    for file, layers in zip(files, named, strict=True):
        for name, layer in layers.items():
            other, known = first.setdefault(name, (file.path.name, layer.size))
            if known != layer.size:
                message = f"has the size {layer.size}, and {known} in {other}"
                where = f"{file.path.name}: {name}"
                faults.append(Fault(where=where, message=message, hint="merge LoRAs of one base model"))
    if faults:
        raise InvalidInput(faults)


def _embeddings(files: Sequence[LoraFile]) -> dict[str, torch.Tensor]:
    """Collect the tokens of all files. Raises InvalidInput when two have another one under the same name."""
    found: dict[str, torch.Tensor] = {}
    faults = []
    for file in files:
        for name, tensor in file.others.items():
            if not torch.equal(found.setdefault(name, tensor), tensor):
                where, message = f"{file.path.name}: {name}", "another file has another token of this name"
                faults.append(Fault(where=where, message=message, hint="train one of them under another name"))
    if faults:
        raise InvalidInput(faults)
    return found


# ---- reports


def _written(
    out: Path,
    naming: str,
    resized: Mapping[str, Resized],
    others: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str],
    *,
    dtype: torch.dtype,
    alpha: float | None = None,
) -> dict[str, Any]:
    layers, kept = {name: each.layer for name, each in resized.items()}, [each.kept_norm for each in resized.values()]
    write_lora_file(out, naming, layers, others, metadata, dtype=dtype, alpha=alpha)
    kept_norm = {"least": min(kept), "mean": sum(kept) / len(kept)}
    return {**_facts_of_file(out, naming, layers), "layers": len(layers), "kept_norm": kept_norm}


def _facts_of_file(path: Path, naming: str, layers: Mapping[str, Update]) -> dict[str, Any]:
    return {
        "file": str(path),
        "size_bytes": path.stat().st_size,
        "sha256": sha256_of_file(path),
        "naming": naming,
        "ranks": _counts(layer.rank for layer in layers.values()),
    }


def _module(updates: Iterable[Mapping[str, Update]]) -> dict[str, str]:
    """Return kohya's name for the module that reads the file: what was LoKr is LoRA now."""
    lokr = any(isinstance(layer, LokrFactors) for layers in updates for layer in layers.values())
    return {"ss_network_module": "networks.lora"} if lokr else {}


def _part(name: str) -> str:
    return next((part for start, part in PARTS.items() if name.startswith(start)), "other")


def _counts(values: Iterable[float]) -> dict[str, int]:
    """Count how often each occurs, the smallest first. JSON wants text for keys."""
    return {f"{value:g}": count for value, count in sorted(Counter(values).items())}


if __name__ == "__main__":
    sys.exit(main())
