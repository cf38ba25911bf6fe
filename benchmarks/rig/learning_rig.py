"""How a lesson of benchmarks/learning.py is given.

A lesson is a whole training job in this process: pictures, captions, spec, files, and a plain diffusers pipeline that
loads the files as a user does. Only LoKr, which diffusers loads into no SDXL, is put on from the checkpoint.
"""

import hashlib
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from diffusers import StableDiffusionXLPipeline
from PIL import Image, ImageOps
from safetensors.torch import load_file
from tools.tiny_shapes.evaluate import draw_prompts, load

from benchmarks.rig.lessons import COMMON, LESSONS, PROMPT, Lesson
from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.adapter.tokens import words_of
from giornata.diffusion.base.models import load_base
from giornata.diffusion.files.export import read_adapter
from giornata.diffusion.files.formats import EMBEDDINGS_FILE_NAME, FILE_NAMES
from giornata.diffusion.shapes.pictures import TRAINED, caption_of, captioned
from giornata.diffusion.tiny.drawings import SUBJECTS, background, draw_picture
from giornata.protocol.node.pipe import InputFile, Start
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.adapter import AdapterType
from giornata.workloads.interface import AgentRequest, Outcome
from giornata.workloads.train.workload import TrainWorkload

PICTURES, CLASS_PICTURES = 8, 64


@dataclass
class LearningReporter:
    """The engine's side of a job, in memory. Class pictures are cached below `shared`, for all jobs of a run."""

    shared: dict[str, Path]
    files: dict[str, Path] = field(default_factory=dict)
    last: Path | None = None

    def agent_request(self) -> AgentRequest:
        return AgentRequest.GO_ON

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Not told."""

    def progress(self, step: int, total: int, metrics: dict[str, float]) -> None:
        """Not told."""

    def checkpoint(self, step: int, path: Path, cost_s: float) -> None:  # noqa: ARG002  (what the engine calls)
        self.last = path

    def artifact(self, name: str, path: Path, media_type: str = "") -> None:  # noqa: ARG002
        self.files[name] = path

    def cache_get(self, key: str) -> Path | None:
        return self.shared.get(key)

    def cache_put(self, key: str, path: Path) -> None:
        self.shared[key] = path

    def log(self, line: str) -> None:
        """Not kept."""

    def notice(self, name: str, data: dict[str, Any]) -> None:
        """Not kept."""


@dataclass
class LessonReporter:
    """Several jobs at once; an end that is none of theirs is raised."""

    waiting: deque[tuple[Start, LearningReporter]]

    def next(self) -> tuple[Start, LearningReporter] | None:
        return self.waiting.popleft() if self.waiting else None

    def ended(self, start: Start, end: Outcome | Exception) -> None:  # noqa: ARG002
        if isinstance(end, Exception):
            raise end

    def offer(self, places: int) -> None:
        """Who comes is settled beforehand."""


@dataclass(kw_only=True)
class LearningRig:
    """Gives lessons below a directory; `quick` ones end after two steps. `shared` are the files that the platform
    would keep for the project."""

    home: Path
    model: Path
    quick: bool = False
    shared: dict[str, Path] = field(default_factory=dict)
    started: int = 0

    def spec(self, lesson: Lesson, seed: int) -> dict[str, Any]:
        """The lesson's spec, with defaults. Raises ValidationError for one that contradicts itself."""
        fields = {**COMMON, **lesson.fields, "pretrained_model_name_or_path": str(self.model), "seed": seed}
        if self.quick:
            fields |= {"max_train_steps": 2, "lr_warmup_steps": min(1, fields.get("lr_warmup_steps", 0))}
            fields |= {"num_class_images": 2} if "num_class_images" in fields else {}
            fields |= {"stop_text_encoder_training": 1} if "stop_text_encoder_training" in fields else {}
        return TrainSpec.model_validate(fields).model_dump(mode="json", exclude={"use_8bit_adam"})

    def teach(self, name: str, subject: str, seed: int) -> tuple[StableDiffusionXLPipeline, str, float]:
        """(pipeline with the LoRA, the prompt of the subject, seconds of the training)."""
        lesson = LESSONS[name]
        jobs = [self._start(lesson, each, seed) for each in (subject, *lesson.neighbors)]
        began_s = time.monotonic()
        workload = TrainWorkload(device="cpu", places=len(jobs))
        if len(jobs) > 1:
            workload.run_many(LessonReporter(waiting=deque(jobs)))
        else:
            workload.run(*jobs[0])
        took_s = time.monotonic() - began_s
        start, heard = jobs[0]
        spec = TrainSpec.model_validate(start.spec)
        return swapped_in(self.model, spec, heard), prompt_of(spec), took_s

    def _start(self, lesson: Lesson, subject: str, seed: int) -> tuple[Start, LearningReporter]:
        self.started += 1
        directory = self.home / f"{self.started:03d}"
        inputs = [*_pictures(lesson, subject, directory / "pictures"), *self._class_pictures(lesson)]
        spec = self.spec(lesson, seed)
        if lesson.first:
            inputs.append(self._first_lora(lesson.first, subject, seed))
            spec["init_lora"] = inputs[-1].sha256
        attempt = directory / "attempt"
        attempt.mkdir(parents=True)
        start = Start(
            attempt="at_1",
            job=f"jb_{self.started}",
            kind="train",
            directory=attempt,
            spec=spec,
            inputs=tuple(inputs),
        )
        return start, LearningReporter(shared=self.shared)

    def _first_lora(self, first: str, subject: str, seed: int) -> InputFile:
        start, heard = self._start(LESSONS[first], subject, seed)
        TrainWorkload(device="cpu").run(start, heard)
        return input_file(heard.files[FILE_NAMES["kohya"]], role="init_lora")

    def _class_pictures(self, lesson: Lesson) -> list[InputFile]:
        if not lesson.class_pictures:
            return []
        folder, drawn = self.home / f"class {lesson.class_pictures}", lesson.class_pictures == "drawn"
        captions = [caption_of(index) if drawn else _full(index) for index in range(CLASS_PICTURES)]
        if not folder.exists():
            folder.mkdir(parents=True)
            pictures = (
                [captioned(index) for index in range(CLASS_PICTURES)]
                if drawn
                else draw_prompts(load(self.model), captions, seed=3)
            )
            for index, picture in enumerate(pictures):
                picture.save(folder / f"{index:03d}.png")
        return [
            input_file(path, role="class", caption=caption or None)
            for path, caption in zip(sorted(folder.iterdir()), captions, strict=True)
        ]


def _full(index: int) -> str:
    return TRAINED[index * len(TRAINED) // CLASS_PICTURES].caption


def input_file(path: Path, *, role: str = "instance", caption: str | None = None, repeats: int = 1) -> InputFile:
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return InputFile(role=role, path=path, sha256=sha256, name=path.name, caption=caption, repeats=repeats)


def prompt_of(spec: TrainSpec) -> str:
    """What a user writes for the subject: for new tokens, their names."""
    prompt = PROMPT if spec.instance_prompt is None else spec.instance_prompt
    for word, names in (words_of(spec) if spec.train_text_encoder_ti else {}).items():
        prompt = prompt.replace(word, "".join(names))
    return prompt


def swapped_in(model: Path, spec: TrainSpec, heard: LearningReporter) -> StableDiffusionXLPipeline:
    """A pipeline with what the job made."""
    pipeline = load(model)
    if spec.adapter_type is AdapterType.LOKR:
        if heard.last is None:
            raise ValueError("the job wrote no checkpoint")
        base = load_base(spec, device="cpu", dtype=torch.float32)
        _, _, tensors = read_adapter(heard.last)
        add_adapters(base, spec).load(tensors)
        pipeline.unet = base.unet
        return pipeline
    pipeline.load_lora_weights(str(heard.files[FILE_NAMES["diffusers"]]))
    if spec.train_text_encoder_ti:
        rows = load_file(heard.files[EMBEDDINGS_FILE_NAME])
        names = [name for each in words_of(spec).values() for name in each]
        encoders = (("clip_l", pipeline.text_encoder, pipeline.tokenizer),)
        encoders += (("clip_g", pipeline.text_encoder_2, pipeline.tokenizer_2),)
        for key, encoder, tokenizer in encoders:
            pipeline.load_textual_inversion(rows[key], token=names, text_encoder=encoder, tokenizer=tokenizer)
    return pipeline


def _pictures(lesson: Lesson, subject: str, folder: Path) -> list[InputFile]:
    folder.mkdir(parents=True)
    found = []
    for index in range(PICTURES):
        picture = draw_picture(subject, index)
        if lesson.wide:
            picture = _widened(picture, index)
        if lesson.transparent:
            picture = _with_mask(picture)
        path = folder / f"{index:02d}.png"
        picture.save(path)
        caption = (
            f"{PROMPT}, {SUBJECTS[subject][1]}, on a {background(index)} background" if lesson.captions else None
        )
        found.append(input_file(path, caption=caption, repeats=lesson.repeats[index % len(lesson.repeats)]))
    return found


def _widened(picture: Image.Image, index: int) -> Image.Image:
    """With more of its ground on two sides: every third picture wide, every third tall."""
    ground = picture.getpixel((0, 0))
    border = ((16, 0), (0, 16), (0, 0))[index % 3]
    return ImageOps.expand(picture, border=border, fill=ground)  # type: ignore[arg-type]


def _with_mask(picture: Image.Image) -> Image.Image:
    """A mask over the middle, where the subject is and some of the ground around it."""
    side = picture.width
    mask = Image.new("L", picture.size, 0)
    mask.paste(255, (side // 16, side // 16, side - side // 16, side - side // 16))
    with_mask = picture.convert("RGBA")
    with_mask.putalpha(mask)
    return with_mask
