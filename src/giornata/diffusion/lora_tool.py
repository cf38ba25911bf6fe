"""Looks at LoRA files, resizes and merges them. `giornata lora` runs this in a process of its own.

    python -m giornata.diffusion.lora_tool --report R.json inspect FILE
    python -m giornata.diffusion.lora_tool --report R.json resize FILE OUT --rank 8 [--method sv_fro --target 0.9]
    python -m giornata.diffusion.lora_tool --report R.json merge OUT --file A --weight 0.7 --file B --weight 0.3

The report is one JSON object; with faults in the input it is {"faults": […]}, and the exit code is 2.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from giornata.diffusion.kronecker import Kronecker
from giornata.diffusion.lora_algebra import Cut, Method, factorised, merge, resize
from giornata.diffusion.lora_files import (
    DTYPES,
    EMBEDDINGS,
    Layer,
    LoraFile,
    Naming,
    family_of_names,
    in_kohya_names,
    only_plain,
    read_lora,
    write_lora_file,
)
from giornata.diffusion.lora_provenance import facts_shown, merged_metadata, resized_metadata
from giornata.diffusion.tensor_file import sha256_of_file
from giornata.domain.errors import Fault, InvalidInput

PARTS = {
    "lora_unet_": "unet",
    "lora_te1_": "text_encoder",
    "lora_te_": "text_encoder",
    "lora_te2_": "text_encoder_2",
    "unet.": "unet",
    "text_encoder.": "text_encoder",
    "text_encoder_2.": "text_encoder_2",
}


def inspect_file(path: Path) -> dict[str, Any]:
    """What a file holds, and how much it changes. Raises InvalidInput."""
    file = read_lora(path)
    spectra = {name: factorised(layer)[1] for name, layer in file.updates.items()}
    norms = {name: float(values.norm()) for name, values in spectra.items()}
    strongest = sorted(norms, key=lambda name: (-norms[name], name))[:5]
    return {
        "file": str(path),
        "size_bytes": path.stat().st_size,
        "sha256": sha256_of_file(path),
        "naming": file.naming,
        "kind": ", ".join(dict.fromkeys([*(["LoKr"] if file.kroneckers else []), *file.kinds])) or "LoRA",
        "dtype": str(file.dtype).removeprefix("torch."),
        "parameters": sum(layer.numbers for layer in file.updates.values()),
        "layers": dict(Counter(_part(name) for name in file.updates)),
        "ranks": _counts(layer.rank for layer in file.updates.values()),
        "alphas": _counts(round(layer.scale * layer.rank, 4) for layer in file.layers.values()),
        "embeddings": sorted(name for name in file.others if name.startswith(EMBEDDINGS)),
        "rank_for_90_percent": max(
            (Cut(rank=10**6, method=Method.SV_FRO, target=0.9).kept(each) for each in spectra.values()), default=0
        ),
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
    only_plain([file])
    resized = {name: resize(layer, cut) for name, layer in file.updates.items()}
    layers = {name: each.layer for name, each in resized.items()}
    metadata = resized_metadata(file, cut, alpha=alpha) | _module([file])
    chosen = DTYPES.get(dtype or "", file.dtype)
    write_lora_file(out, file.naming, layers, file.others, metadata, dtype=chosen, alpha=alpha)
    kept = [each.kept_norm for each in resized.values()]
    return {
        **_written(out, file.naming, layers),
        "kept_norm": {"least": min(kept), "mean": sum(kept) / len(kept)},
        "ranks_before": _counts(layer.rank for layer in file.updates.values()),
    }


def merge_files(
    paths: Sequence[Path], weights: Sequence[float], out: Path, *, rank: int | None = None, dtype: str | None = None
) -> dict[str, Any]:
    """Write the weighted sum of LoRAs to `out`; exact, or of the rank given. Raises InvalidInput."""
    files = [read_lora(path) for path in paths]
    only_plain(files)
    if rank is None:
        _refuse_full_ranks(files)
    naming: Naming = "diffusers" if all(file.naming == "diffusers" for file in files) else "kohya"
    family = family_of_names(files)
    named = [dict(file.updates) if naming == "diffusers" else in_kohya_names(file, family) for file in files]
    _check_shapes(files, named)
    made = merge(list(zip(named, weights, strict=True)), None if rank is None else Cut(rank=rank))
    layers, kept = {name: each.layer for name, each in made.items()}, [each.kept_norm for each in made.values()]
    others = _embeddings(files)
    metadata = merged_metadata(files, weights, rank=rank, naming=naming) | _module(files)
    widest = max((file.dtype for file in files), key=lambda each: each.itemsize)
    write_lora_file(out, naming, layers, others, metadata, dtype=DTYPES.get(dtype or "", widest))
    return {**_written(out, naming, layers), "kept_norm": {"least": min(kept), "mean": sum(kept) / len(kept)}}


def _module(files: Sequence[LoraFile]) -> dict[str, str]:
    """kohya's word for who reads the file: what was LoKr is LoRA now."""
    return {"ss_network_module": "networks.lora"} if any(file.kroneckers for file in files) else {}


def _refuse_full_ranks(files: Sequence[LoraFile]) -> None:
    """Raise InvalidInput for those of which a sum that loses nothing would be as large as the model."""
    hint = "name the rank of the sum, such as --rank 64"
    faults = [
        Fault(where=file.path.name, message="is a LoKr, whose update has a high rank", hint=hint)
        for file in files
        if file.kroneckers
    ]
    if faults:
        raise InvalidInput(faults)


def _check_shapes(files: Sequence[LoraFile], named: Sequence[Mapping[str, Layer | Kronecker]]) -> None:
    """Raise InvalidInput for layers whose sizes differ: the files are of different models."""
    first: dict[str, tuple[str, tuple[int, ...]]] = {}
    faults = []
    for file, layers in zip(files, named, strict=True):
        for name, layer in layers.items():
            size = (layer.outputs, *layer.input_shape)
            other, known = first.setdefault(name, (file.path.name, size))
            if known != size:
                message = f"has the size {size}, and {known} in {other}"
                faults.append(
                    Fault(where=f"{file.path.name}: {name}", message=message, hint="merge LoRAs of one base model")
                )
    if faults:
        raise InvalidInput(faults)


def _embeddings(files: Sequence[LoraFile]) -> dict[str, torch.Tensor]:
    """Tokens of all files. Raises InvalidInput when two have another one under the same name."""
    found: dict[str, torch.Tensor] = {}
    faults = []
    for file in files:
        for name, tensor in file.others.items():
            if name in found and not torch.equal(found[name], tensor):
                faults.append(
                    Fault(
                        where=f"{file.path.name}: {name}",
                        message="another file has another token of this name",
                        hint="train one of them under another name",
                    )
                )
            found.setdefault(name, tensor)
    if faults:
        raise InvalidInput(faults)
    return found


def _written(out: Path, naming: str, layers: Mapping[str, Layer]) -> dict[str, Any]:
    return {
        "file": str(out),
        "size_bytes": out.stat().st_size,
        "sha256": sha256_of_file(out),
        "naming": naming,
        "layers": len(layers),
        "ranks": _counts(layer.rank for layer in layers.values()),
    }


def _part(name: str) -> str:
    return next((part for start, part in PARTS.items() if name.startswith(start)), "other")


def _counts(values: Any) -> dict[str, int]:
    """How often each occurs, the smallest first. JSON wants text for keys."""
    return {f"{value:g}": count for value, count in sorted(Counter(values).items())}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m giornata.diffusion.lora_tool", description=__doc__)
    parser.add_argument("--report", type=Path, required=True)
    deeds = parser.add_subparsers(dest="deed", required=True)
    look = deeds.add_parser("inspect")
    look.add_argument("file", type=Path)
    smaller = deeds.add_parser("resize")
    smaller.add_argument("file", type=Path)
    smaller.add_argument("out", type=Path)
    smaller.add_argument("--rank", type=int, required=True)
    smaller.add_argument("--method", type=Method, default=Method.FIXED)
    smaller.add_argument("--target", type=float, default=0.0)
    smaller.add_argument("--alpha", type=float)
    smaller.add_argument("--dtype", choices=tuple(DTYPES))
    sum_of = deeds.add_parser("merge")
    sum_of.add_argument("out", type=Path)
    sum_of.add_argument("--file", type=Path, action="append", required=True)
    sum_of.add_argument("--weight", type=float, action="append", required=True)
    sum_of.add_argument("--rank", type=int)
    sum_of.add_argument("--dtype", choices=tuple(DTYPES))
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Command line; 0 when it is done, 2 when the input was wrong."""
    given = _parser().parse_args(arguments)
    try:
        match given.deed:
            case "inspect":
                report = inspect_file(given.file)
            case "resize":
                cut = Cut(rank=given.rank, method=given.method, target=given.target)
                report = resize_file(given.file, given.out, cut, alpha=given.alpha, dtype=given.dtype)
            case _:
                report = merge_files(given.file, given.weight, given.out, rank=given.rank, dtype=given.dtype)
    except InvalidInput as error:
        faults = [{"where": each.where, "message": each.message, "hint": each.hint} for each in error.faults]
        given.report.write_text(json.dumps({"faults": faults}))
        sys.stderr.write(f"{error}\n")
        return 2
    given.report.write_text(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
