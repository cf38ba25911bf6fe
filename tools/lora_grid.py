"""Pictures of several LoRAs beside those of their base model, from the same seeds, on one sheet.

    python -m tools.lora_grid --model DIR --out grid.png \
        --row "teal heart=heart.safetensors:a photo of sks toy" --pictures "teal heart=heart/" --seeds 0 1 2 \
        --also "a red circle on a white background"

What --also names is drawn once for each row, with and without the LoRA, in columns of its own: what else has changed.
Everything is loaded by plain diffusers, as a user would: what the sheet shows is what the files do.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from diffusers import DiffusionPipeline
from diffusers.utils import logging as diffusers_logging
from PIL import Image, ImageOps, UnidentifiedImageError
from transformers.utils import logging as transformers_logging

from giornata.diffusion.base.model_folder import check_model_folder, family_of_folder
from giornata.diffusion.files.lora_file import diffusers_faults
from giornata.diffusion.sampling.grid_layout import Group, SheetRow, cell_side_px, compose_sheet, fitted
from giornata.domain.errors import Fault, InvalidInput

MAX_PICTURES = 3
PICTURE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRow:
    """What one row shows. Without `lora` only the base model's pictures; `pictures` are some it was trained on."""

    label: str
    lora: Path | None
    prompt: str
    pictures: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How pictures are made. `side_px` defaults to the model's own size."""

    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 20
    guidance: float = 5.0
    side_px: int | None = None
    device: str = "cpu"
    dtype: torch.dtype = torch.float32


def parse_row(text: str) -> GridRow:
    """`label=path:prompt`, with `-` for no LoRA. Raises InvalidInput."""
    label, equals, rest = text.partition("=")
    path, colon, prompt = rest.partition(":")
    if not (equals and colon and label.strip() and path.strip()):
        hint = "write label=path:prompt, with - as the path for the base model alone"
        raise InvalidInput([Fault(where="--row", message=f"cannot read {text!r}", hint=hint)])
    lora = None if path.strip() == "-" else Path(path.strip())
    return GridRow(label=label.strip(), lora=lora, prompt=prompt.strip())


def paint(pipeline: DiffusionPipeline, prompt: str, sampling: Sampling, *, side_px: int) -> tuple[Image.Image, ...]:
    """One picture per seed, each from the noise of its own generator; all in one batch."""
    generators = [torch.Generator("cpu").manual_seed(seed) for seed in sampling.seeds]
    made = pipeline(
        prompt=[prompt] * len(generators),
        generator=generators,
        num_inference_steps=sampling.steps,
        guidance_scale=sampling.guidance,
        height=side_px,
        width=side_px,
    )
    return tuple(made.images)


@contextmanager
def wearing(pipeline: DiffusionPipeline, lora: Path) -> Iterator[None]:
    """The pipeline with a LoRA, and without it afterwards, whatever happens."""
    try:
        pipeline.load_lora_weights(str(lora.parent), weight_name=lora.name)
        yield
    finally:
        pipeline.unload_lora_weights()


def paint_row(
    pipeline: DiffusionPipeline, row: GridRow, sampling: Sampling, *, side_px: int
) -> tuple[tuple[Image.Image, ...], tuple[Image.Image, ...]]:
    """(base, LoRA) pictures of a row. The pipeline is left without a LoRA, whatever happens."""
    base = paint(pipeline, row.prompt, sampling, side_px=side_px)
    if row.lora is None:
        return base, ()
    with wearing(pipeline, row.lora):
        return base, paint(pipeline, row.prompt, sampling, side_px=side_px)


def make_grid(
    model: Path,
    rows: Sequence[GridRow],
    out: Path,
    *,
    sampling: Sampling | None = None,
    title: str = "LoRA and base",
    also: Sequence[str] = (),
) -> Path:
    """Paint all rows and write the sheet as a PNG. Raises InvalidInput with all that is missing or unreadable.

    Each prompt of `also` gets a group of two columns: base and LoRA, from the first seed.
    """
    sampling = sampling or Sampling()
    _refuse(model, rows, sampling)
    pipeline = family_of_folder(model).load_pipeline(model, dtype=sampling.dtype).to(sampling.device)
    pipeline.set_progress_bar_config(disable=True)
    side_px = sampling.side_px or pipeline.unet.config.sample_size * pipeline.vae_scale_factor
    cell_px = cell_side_px(side_px)
    shown = max((min(len(row.pictures), MAX_PICTURES) for row in rows), default=0)
    alone = replace(sampling, seeds=sampling.seeds[:1])
    of_base = [paint(pipeline, prompt, alone, side_px=side_px) for prompt in also]
    sheet_rows = []
    for row in rows:
        pictures = paint_row(pipeline, row, sampling, side_px=side_px)
        trained = (_training_pictures(row, cell_px),) if shown else ()
        others = _beside(pipeline, row, of_base, also, alone, side_px=side_px)
        sheet_rows.append(SheetRow(label=row.label, text=row.prompt, pictures=(*trained, *pictures, *others)))
    groups = _groups(shown, sampling.seeds, also)
    subtitle = f"{sampling.steps} steps, guidance {sampling.guidance:g}, {side_px} px, same seeds for base and LoRA"
    sheet = compose_sheet(sheet_rows, groups, title=title, subtitle=subtitle, cell_px=cell_px)
    out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(out, format="PNG", optimize=True)
    return out


def _groups(shown: int, seeds: Sequence[int], also: Sequence[str]) -> list[Group]:
    captions = tuple(f"seed {seed}" for seed in seeds)
    trained = [Group(heading="Trained on", captions=("",) * shown)] if shown else []
    others = [Group(heading=prompt, captions=("base model", "with LoRA")) for prompt in also]
    return [
        *trained,
        Group(heading="Base model", captions=captions),
        Group(heading="With LoRA", captions=captions),
        *others,
    ]


def _beside(
    pipeline: DiffusionPipeline,
    row: GridRow,
    of_base: Sequence[tuple[Image.Image, ...]],
    also: Sequence[str],
    sampling: Sampling,
    *,
    side_px: int,
) -> list[tuple[Image.Image, ...]]:
    """(base, LoRA) for each of the other prompts; the base alone in a row without a LoRA."""
    if row.lora is None or not also:
        return list(of_base)
    with wearing(pipeline, row.lora):
        with_lora = [paint(pipeline, prompt, sampling, side_px=side_px) for prompt in also]
    return [(*base, *other) for base, other in zip(of_base, with_lora, strict=True)]


def pictures_in(folder: Path) -> tuple[Path, ...]:
    """The picture files of a folder, by name. Raises InvalidInput when there is none."""
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    found = tuple(file for file in files if file.suffix.lower() in PICTURE_SUFFIXES)
    if not found:
        hint = "name a folder with pictures"
        raise InvalidInput([Fault(where="--pictures", message=f"{folder} holds no pictures", hint=hint)])
    return found


def _training_pictures(row: GridRow, cell_px: int) -> tuple[Image.Image, ...]:
    pictures = []
    for path in row.pictures[:MAX_PICTURES]:
        with Image.open(path) as picture:
            pictures.append(fitted(ImageOps.exif_transpose(picture), cell_px))
    return tuple(pictures)


def _refuse(model: Path, rows: Sequence[GridRow], sampling: Sampling) -> None:
    faults = check_model_folder(model, field="--model")
    if not rows:
        faults.append(Fault(where="--row", message="is missing", hint="give at least one row"))
    if not sampling.seeds:
        faults.append(Fault(where="--seeds", message="is empty", hint="give at least one seed"))
    for row in rows:
        if row.lora is not None and not row.lora.is_file():
            faults.append(Fault(where=f"--row {row.label}", message=f"there is no file {row.lora}"))
        elif row.lora is not None:
            faults += diffusers_faults(row.lora, f"--row {row.label}")
        faults += [_broken(path) for path in row.pictures[:MAX_PICTURES] if not _readable(path)]
    if faults:
        raise InvalidInput(faults)


def _broken(path: Path) -> Fault:
    return Fault(where=str(path), message="is not a picture that can be read", hint="remove it from the folder")


def _readable(path: Path) -> bool:
    try:
        with Image.open(path) as picture:
            picture.load()
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError):
        return False
    return True


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.lora_grid", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the base model")
    parser.add_argument("--out", type=Path, required=True, help="PNG to write")
    parser.add_argument("--row", action="append", default=[], metavar="LABEL=PATH:PROMPT", help="- for no LoRA")
    parser.add_argument("--pictures", action="append", default=[], metavar="LABEL=DIR", help="trained on these")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, default=5.0)
    parser.add_argument("--also", action="append", default=[], metavar="PROMPT", help="draw this in every row too")
    parser.add_argument("--side", type=int, help="pixels; default: the model's own")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--title", default="LoRA and base")
    return parser


def _rows(texts: Sequence[str], folders: Sequence[str]) -> list[GridRow]:
    parsed = [parse_row(text) for text in texts]
    trained = {label.strip(): Path(folder) for label, _, folder in (text.partition("=") for text in folders)}
    unknown = sorted(trained.keys() - {row.label for row in parsed})
    if unknown:
        raise InvalidInput([Fault(where="--pictures", message=f"no row is labeled {', '.join(unknown)}")])
    return [
        GridRow(
            label=row.label,
            lora=row.lora,
            prompt=row.prompt,
            pictures=pictures_in(trained[row.label]) if row.label in trained else (),
        )
        for row in parsed
    ]


def main(arguments: list[str] | None = None) -> int:
    """Command line; 0 when the sheet was written, 2 when the input was wrong."""
    given = _arguments().parse_args(arguments)
    diffusers_logging.set_verbosity_error()  # it warns of each model that a LoRA leaves alone
    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    sampling = Sampling(
        seeds=tuple(given.seeds),
        steps=given.steps,
        guidance=given.guidance,
        side_px=given.side,
        device=given.device,
        dtype=torch.bfloat16 if given.device.startswith("cuda") else torch.float32,
    )
    try:
        rows = _rows(given.row, given.pictures)
        make_grid(given.model, rows, given.out, sampling=sampling, title=given.title, also=given.also)
    except InvalidInput as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
