"""Turns any training checkpoint into a file that users load.

    python -m giornata.diffusion.files.export CHECKPOINT OUT --format kohya|diffusers [--dtype float16]

The weights are those of the checkpoint's step, so an earlier step of a job can still be had after its end.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from giornata.diffusion.families import SDXL, Family, family_named
from giornata.diffusion.families.sdxl import SDXL_LAYERS_PER_BLOCK, layers_per_block_of
from giornata.diffusion.files.formats import (
    EMBEDDINGS_FILE_NAME,
    FILE_NAMES,
    Dtype,
    Format,
    write_embeddings,
    write_lora,
)
from giornata.diffusion.files.lora_facts import LoraFacts, facts_of
from giornata.diffusion.files.model_card import hashes_of
from giornata.diffusion.optim.optimizer import EMA
from giornata.diffusion.tensor_file import METADATA_KEY, read_file_header
from giornata.domain.errors import Fault, InvalidInput, WorkloadFailed
from giornata.protocol.specs import TrainSpec

ADAPTER = "adapter."
HINT = "give a checkpoint that a training job wrote"


def export_checkpoint(
    checkpoint: Path, out: Path, kind: Format, *, dtype: Dtype | None = None, output_name: str | None = None
) -> Path:
    """Write the adapter in `checkpoint` to `out`, averaged if the job wants that. New tokens are bundled in kohya's
    format, and beside the file of diffusers' under EMBEDDINGS_FILE_NAME, with the same beginning.

    `dtype` defaults to the job's output_dtype.
    Raises InvalidInput when `checkpoint` is no checkpoint; WorkloadFailed as the writers do.
    """
    spec, step, tensors = read_adapter(checkpoint)
    facts = _facts(
        spec,
        step,
        output_name or out.stem,
        layers_per_block=layers_per_block_of(tensors),
        family=family_of_checkpoint(checkpoint),
    )
    precision, origin = dtype or spec.output_dtype, _origin(checkpoint, spec)
    if spec.train_text_encoder_ti and kind == "diffusers":
        begins, found, _ = out.name.partition(FILE_NAMES["diffusers"])
        beside = out.with_name((begins if found else "") + EMBEDDINGS_FILE_NAME)
        write_embeddings(beside, tensors, dtype=precision, extra=origin)
    return write_lora(kind, out, tensors, facts, dtype=precision, extra=origin)


def read_adapter(checkpoint: Path) -> tuple[TrainSpec, int, dict[str, torch.Tensor]]:
    """Return (spec, step, adapter weights by the names of `Adapters.tensors()`). Raises InvalidInput."""
    try:
        with safe_open(checkpoint, framework="pt") as opened:
            header = json.loads((opened.metadata() or {})[METADATA_KEY])
            spec, step = TrainSpec.model_validate(header["spec"]), int(header["step"])
            every = list(opened.keys())
            prefix = EMA if any(name.startswith(EMA) for name in every) else ADAPTER
            names = [name for name in every if name.startswith(prefix)]
            tensors = {name.removeprefix(prefix): opened.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise _no_checkpoint(checkpoint, f"cannot be read: {error}") from error
    except ValidationError as error:
        wrong = ", ".join(".".join(map(str, fault["loc"])) for fault in error.errors())
        raise _no_checkpoint(checkpoint, f"holds a spec that this version does not understand: {wrong}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise _no_checkpoint(checkpoint, f"has no whole `{METADATA_KEY}` header: {error}") from error
    if not tensors:
        raise _no_checkpoint(checkpoint, "holds no adapter weights")
    return spec, step, tensors


def family_of_checkpoint(checkpoint: Path) -> Family:
    """Return the family of the checkpoint's base model. Checkpoints from before there were several families do not
    name it.

    Raises InvalidInput for a family that is not known here.
    """
    name = read_file_header(checkpoint).get("family", SDXL.name)
    try:
        return family_named(name)
    except KeyError as error:
        message = f"is of a kind of base model that this version does not know: {name}"
        raise _no_checkpoint(checkpoint, message) from error


def _origin(checkpoint: Path, spec: TrainSpec) -> dict[str, str]:
    """Return the hashes that the job's own files have; those that an older checkpoint lacks are left out."""
    header = read_file_header(checkpoint)
    known = {key: header.get(key) or "" for key in ("data_sha256", "base_sha256")}
    return {key: value for key, value in hashes_of(spec, **known).items() if value}


def _facts(
    spec: TrainSpec, step: int, output_name: str, *, layers_per_block: int | None, family: Family
) -> LoraFacts:
    """Return the facts of the training; the UNet's depth and the prediction type come from the base model's folder,
    where there is one.

    Without the folder, the names of the weights tell the depth; weights of chosen blocks alone do not tell it, and
    then it is SDXL's.
    """
    folder = Path(spec.pretrained_model_name_or_path)
    told = layers_per_block if spec.lora_unet_blocks is None else None
    return facts_of(
        spec,
        step=step,
        output_name=output_name,
        layers_per_block=_setting(folder / "unet" / "config.json", "layers_per_block", told or SDXL_LAYERS_PER_BLOCK),
        family=family,
        prediction_type=_setting(folder / "scheduler" / "scheduler_config.json", "prediction_type", "epsilon"),
    )


def _setting(path: Path, key: str, default: Any) -> Any:
    try:
        return json.loads(path.read_bytes()).get(key, default)
    except (OSError, ValueError):
        return default


def _no_checkpoint(path: Path, message: str) -> InvalidInput:
    return InvalidInput([Fault(where=str(path), message=message, hint=HINT)])


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 when the file was written, 2 when the input was wrong."""
    parser = argparse.ArgumentParser(prog="python -m giornata.diffusion.files.export", description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--format", choices=tuple(FILE_NAMES), default="kohya")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help="default: as the job says")
    parser.add_argument("--name", help="name inside the file; default: that of the file")
    given = parser.parse_args(arguments)
    try:
        export_checkpoint(given.checkpoint, given.out, given.format, dtype=given.dtype, output_name=given.name)
    except (InvalidInput, WorkloadFailed) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
