"""What a LoRA of the drawing model has learned and what it has kept, by the scorer without learned parts.

    python -m tools.tiny_shapes.learned --model DIR --out FILE --row teal-heart=LORA:"a sks shape"

Three figures, each with its control, the base model on the same prompts from the same noise:

- subject: pictures of the prompt, with each background in turn, that show the subject: the outline by its IoU, and
  its colors in their places. Beside it the mean IoU, which does not depend on a threshold.
- old: prompts that the base was trained on, in which the subject's word does not occur, that are still followed.
- unmoved: the same prompts, drawn with the LoRA, read as the base's pictures of the same noise: the same form, color
  and background. It counts what changed, right or wrong.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diffusers import StableDiffusionXLPipeline
from diffusers.utils import logging as diffusers_logging
from PIL import Image
from transformers.utils import logging as transformers_logging

from giornata.diffusion.draws.determinism import fix_determinism
from giornata.diffusion.files.lora_file import diffusers_faults
from giornata.diffusion.shapes.pictures import TRAINED
from giornata.diffusion.tiny.drawings import BACKGROUNDS
from giornata.diffusion.tiny.drawings import SUBJECTS as DRAWN
from giornata.domain.errors import Fault, InvalidInput
from tools.lora_grid import GridRow, parse_row, wearing
from tools.tiny_shapes.evaluate import draw_prompts, load
from tools.tiny_shapes.scoring import LEAST_IOU, Scorer, ShapeReading, count_scores

SUBJECT_SEED, OLD_SEED = 1, 2
PICTURES = 32  # one batch


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectMarks:
    """Shares of `count` pictures of a subject, 0 to 1."""

    count: int
    subject: float
    subject_iou: float
    background: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks(SubjectMarks):
    """The same, and shares of as many pictures of old prompts."""

    old: float
    unmoved: float


class Examination:
    """Examines what comes of one base model. What the base itself draws is drawn once for all.

    `count` pictures of each subject, and as many of old prompts.
    """

    def __init__(self, base: StableDiffusionXLPipeline, *, count: int = PICTURES) -> None:
        self._backgrounds = [tuple(BACKGROUNDS)[place % len(BACKGROUNDS)] for place in range(count)]
        self._old = [TRAINED[place * len(TRAINED) // count] for place in range(count)]
        self._base = base
        self._old_of_base = self._read_old(base)
        self._of_base: dict[str, list[Image.Image]] = {}

    def of_base(self, subject: str, *, prompt: str) -> Marks:
        """The control. No LoRA may be attached to the base now. Raises KeyError for a subject that nobody draws."""
        if prompt not in self._of_base:
            self._of_base[prompt] = self._draw(self._base, prompt)
        return self._marks(subject, self._of_base[prompt], self._old_of_base)

    def of(self, pipeline: StableDiffusionXLPipeline, subject: str, *, prompt: str) -> Marks:
        """Of a pipeline with its LoRA. Raises KeyError for a subject that nobody draws."""
        return self._marks(subject, self._draw(pipeline, prompt), self._read_old(pipeline))

    def of_subject(self, pipeline: StableDiffusionXLPipeline, subject: str, *, prompt: str) -> SubjectMarks:
        """As `of`, without old prompts, which take as long. Raises KeyError for a subject that nobody draws."""
        return SubjectMarks(**self._of_subject(subject, self._draw(pipeline, prompt)))

    def _of_subject(self, subject: str, drawn: Sequence[Image.Image]) -> dict[str, Any]:
        scorer = Scorer((subject,))
        read = [scorer.read(picture) for picture in drawn]
        return {
            "count": len(read),
            "subject": _mean([shows(reading, subject) for reading in read]),
            "subject_iou": _mean([reading.iou[subject] for reading in read]),
            "background": _mean([one.background == name for one, name in zip(read, self._backgrounds, strict=True)]),
        }

    def _marks(self, subject: str, drawn: Sequence[Image.Image], old: Sequence[ShapeReading]) -> Marks:
        return Marks(
            **self._of_subject(subject, drawn),
            old=count_scores(old, self._old).all,
            unmoved=_mean([_said(one) == _said(other) for one, other in zip(old, self._old_of_base, strict=True)]),
        )

    def _draw(self, pipeline: StableDiffusionXLPipeline, prompt: str) -> list[Image.Image]:
        prompts = [f"{prompt} on a {background} background" for background in self._backgrounds]
        return draw_prompts(pipeline, prompts, seed=SUBJECT_SEED)

    def _read_old(self, pipeline: StableDiffusionXLPipeline) -> list[ShapeReading]:
        scorer = Scorer()
        drawn = draw_prompts(pipeline, [shape.caption for shape in self._old], seed=OLD_SEED)
        return [scorer.read(picture) for picture in drawn]


def shows(reading: ShapeReading, subject: str) -> bool:
    """Whether a picture shows the subject: its outline, with its colors in their places."""
    return reading.iou[subject] >= LEAST_IOU and subject in reading.own_colors


def examine(model: Path, rows: Sequence[GridRow], *, count: int = PICTURES) -> dict[str, dict[str, Any]]:
    """{subject: {"base": Marks, "lora": Marks}} of rows that are labeled with their subjects.

    Raises InvalidInput for subjects that nobody draws, and for files that are not there or that diffusers would not
    load whole.
    """
    faults = [fault for row in rows for fault in _faults(row)]
    if faults:
        raise InvalidInput(faults)
    pipeline = load(model)
    examination = Examination(pipeline, count=count)
    found = {}
    base = {row.label: examination.of_base(row.label, prompt=row.prompt) for row in rows}
    for row in rows:
        with wearing(pipeline, _file(row)):
            with_lora = examination.of(pipeline, row.label, prompt=row.prompt)
        found[row.label] = {"base": asdict(base[row.label]), "lora": asdict(with_lora)}
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _said(reading: ShapeReading) -> tuple[str | None, str | None, str | None]:
    return reading.form, reading.color, reading.background


def _file(row: GridRow) -> Path:
    if row.lora is None:
        raise ValueError(f"{row.label} has no LoRA")
    return row.lora


def _faults(row: GridRow) -> list[Fault]:
    where = f"--row {row.label}"
    faults = []
    if row.label not in DRAWN:
        hint = f"one of {', '.join(DRAWN)}"
        faults.append(Fault(where=where, message=f"nobody draws {row.label}", hint=hint))
    if row.lora is None or not row.lora.is_file():
        return [*faults, Fault(where=where, message=f"there is no file {row.lora}")]
    return [*faults, *diffusers_faults(row.lora, where)]


def main(arguments: list[str] | None = None) -> int:
    """Command line; 0 when the marks were written, 2 when the input was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.tiny_shapes.learned", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of the drawing model")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write: subject to marks of base and LoRA")
    parser.add_argument("--row", action="append", default=[], metavar="SUBJECT=PATH:PROMPT")
    parser.add_argument("--count", type=int, default=PICTURES, help="pictures of each kind")
    given = parser.parse_args(arguments)
    diffusers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    fix_determinism(threads=1)
    try:
        found = examine(given.model, [parse_row(text) for text in given.row], count=given.count)
    except InvalidInput as error:
        sys.stderr.write(f"{error}\n")
        return 2
    given.out.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
