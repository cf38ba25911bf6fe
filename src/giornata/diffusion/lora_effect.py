"""How far LoRAs move the pictures of their base model: `python -m giornata.diffusion.lora_effect`.

The files are loaded by plain diffusers. The measure is the mean absolute difference of the pictures with and without
the LoRA, from the same noise, over all pixels and channels; 0 for a LoRA that does nothing, 1 at most.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from diffusers.utils import logging as diffusers_logging
from PIL import Image, ImageChops, ImageStat
from transformers.utils import logging as transformers_logging

from giornata.diffusion.grid import Row, Sampling, paint_row, parse_row
from giornata.diffusion.lora_file import diffusers_faults
from giornata.diffusion.model_folder import family_of_folder
from giornata.domain.errors import Fault, InvalidInput

SAMPLING = Sampling(seeds=(0, 1), steps=10, guidance=3.0)


def mean_difference(first: Image.Image, second: Image.Image) -> float:
    """Mean absolute difference of two RGB pictures of one size, of the range 0 to 1."""
    means = ImageStat.Stat(ImageChops.difference(first, second)).mean
    return sum(means) / len(means) / 255.0


def measure(model: Path, rows: Sequence[Row], *, sampling: Sampling = SAMPLING) -> dict[str, float]:
    """The effect of each row's LoRA, by its label. Raises InvalidInput for files that are not there, or that
    diffusers does not load."""
    faults = [fault for row in rows for fault in _faults(row)]
    if faults:
        raise InvalidInput(faults)
    pipeline = family_of_folder(model).load_pipeline(model, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    side_px = pipeline.unet.config.sample_size * pipeline.vae_scale_factor
    effects = {}
    for row in rows:
        base, with_lora = paint_row(pipeline, row, sampling, side_px=side_px)
        moved = [mean_difference(one, other) for one, other in zip(base, with_lora, strict=True)]
        effects[row.label] = sum(moved) / len(moved)
    return effects


def _faults(row: Row) -> list[Fault]:
    where = f"--row {row.label}"
    if row.lora is None or not row.lora.is_file():
        return [Fault(where=where, message=f"there is no file {row.lora}")]
    return diffusers_faults(row.lora, where)


def main(arguments: list[str] | None = None) -> int:
    """Command line; 0 when the measures were written, 2 when the input was wrong."""
    parser = argparse.ArgumentParser(prog="python -m giornata.diffusion.lora_effect", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the base model")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write: label to measure")
    parser.add_argument("--row", action="append", default=[], metavar="LABEL=PATH:PROMPT", required=True)
    given = parser.parse_args(arguments)
    diffusers_logging.set_verbosity_error()
    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    try:
        effects = measure(given.model, [parse_row(text) for text in given.row])
    except InvalidInput as error:
        sys.stderr.write(f"{error}\n")
        return 2
    given.out.write_text(json.dumps(effects, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
