"""A LoRA is trained, and pictures are drawn with it by the name of its job: server, node and engine are real."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from tests.system.conftest import Up

from giornata.diffusion.shapes.shipped import copy_drawing_model

PROMPT, STEPS, SEED, SIDE_PX = "a photo of sks circle", 6, 7, 64
PATIENCE_S = 240.0

Command = Callable[..., str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return copy_drawing_model(tmp_path / "shapes")


@pytest.fixture
def giornata(start_up: Callable[..., Up], tmp_path: Path) -> Command:
    """Runs a command against an installation with one node; returns what it printed."""
    up = start_up("--nodes", "1")

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "giornata", "--data", str(up.data), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr + up.said()
        return done.stdout

    return run


def circles(folder: Path) -> Path:
    folder.mkdir()
    for number in range(3):
        image = Image.new("RGB", (SIDE_PX, SIDE_PX), "white")
        ImageDraw.Draw(image).ellipse((8 + number, 8, 50, 50), fill=(20, 160, 60))
        image.save(folder / f"{number}.png")
    return folder


def drawn(giornata: Command, model: Path, out: Path, *options: str) -> np.ndarray:
    size = ("--size", f"{SIDE_PX}x{SIDE_PX}", "--steps", str(STEPS), "--seed", str(SEED))
    giornata("generate", PROMPT, "--model", str(model), *size, *options, "-o", str(out))
    return np.asarray(Image.open(only(out))).astype(int)


def only(folder: Path) -> Path:
    (picture,) = folder.glob("*.png")
    return picture


def repeated(giornata: Command, folder: Path) -> bytes:
    """The bytes of the picture in the folder, drawn again from what its file says."""
    again = folder.with_name(f"{folder.name}-again")
    giornata("generate", "--from-image", str(only(folder)), "-o", str(again))
    return only(again).read_bytes()


def drawn_by_diffusers(model: Path, lora: Path) -> np.ndarray:
    import torch
    from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline

    pipeline = StableDiffusionXLPipeline.from_pretrained(model, local_files_only=True)
    pipeline.scheduler = EulerDiscreteScheduler.from_config(pipeline.scheduler.config)
    pipeline.load_lora_weights(lora)
    seeded = torch.Generator("cpu").manual_seed(SEED)
    settings = {"num_inference_steps": STEPS, "guidance_scale": 7.0, "width": SIDE_PX, "height": SIDE_PX}
    return np.asarray(pipeline(PROMPT, generator=seeded, **settings).images[0]).astype(int)


@pytest.mark.long
def test_a_job_that_trained_a_lora_is_its_name_and_the_picture_is_that_of_diffusers(
    giornata: Command, model: Path, tmp_path: Path
) -> None:
    spec = ("--steps", "10", "--set", f"resolution={SIDE_PX}", "--set", "learning_rate=0.01")
    spec += ("--set", "checkpointing_steps=5", "--follow", "-o", str(tmp_path / "lora"))
    said = giornata(
        "train", str(circles(tmp_path / "circles")), "--model", str(model), "--instance-prompt", PROMPT, *spec
    )
    job_id = next(word for word in said.split() if word.startswith("job_"))

    plain = drawn(giornata, model, tmp_path / "plain")
    adapted = drawn(giornata, model, tmp_path / "adapted", "--lora", f"{job_id}:1.0")
    earlier = drawn(giornata, model, tmp_path / "earlier", "--lora", f"{job_id}@5")

    (lora,) = (tmp_path / "lora").glob("*-pytorch_lora_weights.safetensors")
    assert np.abs(adapted - drawn_by_diffusers(model, lora)).max() <= 1
    assert repeated(giornata, tmp_path / "adapted") == only(tmp_path / "adapted").read_bytes()
    assert (adapted != plain).any()
    assert (earlier != adapted).any()
    assert (earlier != plain).any()


@pytest.mark.long
def test_a_picture_is_repeated_to_equal_bytes_from_its_own_file(
    giornata: Command, model: Path, tmp_path: Path
) -> None:
    """Each picture is alone in its batch, as its repetition is."""
    chosen, begun = tmp_path / "chosen", tmp_path / "begun"
    choices = ("a {red|blue|green} {star|circle}", "--negative", "a (square:1.2)", "--seed", "11")
    shared = ("--model", str(model), "--size", f"{SIDE_PX}x{SIDE_PX}", "--steps", str(STEPS))
    giornata("generate", *choices, *shared, "--scheduler", "dpmpp_2m_karras", "-o", str(chosen))
    start = ("--image", str(only(chosen)), "--set", "strength=0.6", "--seed", "3")
    giornata("generate", "a blue star", *start, *shared, "-o", str(begun))

    for folder in (chosen, begun):
        assert repeated(giornata, folder) == only(folder).read_bytes(), folder.name
