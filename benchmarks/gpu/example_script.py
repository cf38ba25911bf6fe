"""The example script of diffusers: where it comes from, and how long its steps take."""

import hashlib
import importlib.util
import sys
import urllib.request
from pathlib import Path
from typing import Any

import diffusers

from benchmarks.gpu.settings import GpuSettings
from benchmarks.rig.full_model import build
from benchmarks.rig.training_runs import Work, script
from giornata.protocol.node.pipe import InputFile

NAME = "train_dreambooth_lora_sdxl.py"
PLACE = "https://raw.githubusercontent.com/huggingface/diffusers/v{version}/examples/dreambooth/" + NAME
FETCH_S = 15.0


class NoScript(Exception):
    """The script cannot be had, or does not run. The message says why."""


def script_of(wanted: str, home: Path) -> Path:
    """The script: `wanted` is its path, `fetch` for that of the installed diffusers, or `none`. Raises NoScript."""
    if wanted == "none":
        raise NoScript("no script was asked for")
    if importlib.util.find_spec("torchvision") is None:
        raise NoScript("it imports torchvision, which is not installed; install the one of this torch, and try again")
    if wanted != "fetch":
        if not Path(wanted).is_file():
            raise NoScript(f"{wanted} is no file")
        return Path(wanted)
    place, path = PLACE.format(version=diffusers.__version__), home / NAME
    try:
        with urllib.request.urlopen(place, timeout=FETCH_S) as answer:
            path.write_bytes(answer.read())
    except OSError as error:
        raise NoScript(f"{place} cannot be fetched ({error}); give its path (SCRIPT=...)") from error
    return path


def script_told(path: Path, settings: GpuSettings, home: Path, inputs: tuple[InputFile, ...]) -> dict[str, Any]:
    """Milliseconds of its steps, by its own progress bar. Writes the model to the disk first: the script reads it.
    Raises NoScript with the end of what the script said."""
    model = build(home / "for-the-script", settings.device) if settings.model == "full" else home / "tiny"
    work = Work(
        model=str(model),
        pictures=inputs,
        resolution=settings.resolution,
        precision="bf16",
        rank=settings.rank,
        batch=1,
        steps=settings.warm + settings.steps,
        jobs=1,
        device=settings.device,
        threads=1,
    )
    try:
        run = script(work, home, path=path, python=sys.executable)
    except SystemExit as error:
        raise NoScript(str(error.code)) from error
    if run.step_s is None:
        raise NoScript("its progress bar told no rate")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"step_ms": 1000 * run.step_s, "sha256": digest, "diffusers": diffusers.__version__}
