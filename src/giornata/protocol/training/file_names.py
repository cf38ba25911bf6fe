"""Names of the files of a training job.

A job with an `output_name` puts the name in front of each file, so that the files of two jobs fit into one folder.
A job without one keeps the names that all jobs had before the field was there.
"""

import re
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

LORA_FILES = {"kohya": "lora-kohya.safetensors", "diffusers": "pytorch_lora_weights.safetensors"}
EMBEDDINGS = "embeddings.safetensors"
SAMPLES = "samples.png"
BY_STEP = "samples-by-step.png"

LONGEST_BYTES = 160
"""Maximum bytes of a name in UTF-8. File systems take 255, and a suffix takes up to 45."""
# What Windows forbids in the name of a file, and what would end the tag <lora:NAME:1> of A1111 or code in Markdown.
FORBIDDEN = r'<>:"/\\|?*`\x00-\x1f\x7f'
_INNER, _OUTER = rf"[^{FORBIDDEN}]", rf"[^\s.{FORBIDDEN}]"


def _not_too_long(name: str) -> str:
    if len(name.encode()) > LONGEST_BYTES:
        raise ValueError(f"has {len(name.encode())} bytes in UTF-8, and at most {LONGEST_BYTES} are allowed")
    return name


OutputName = Annotated[
    str, StringConstraints(pattern=rf"^{_OUTER}({_INNER}*{_OUTER})?$"), AfterValidator(_not_too_long)
]


def output_name_of(job_name: str) -> str | None:
    """The name for people as the beginning of a file's name; None where nothing of it can be."""
    name = re.sub(rf"[{FORBIDDEN}]+", "-", job_name).strip(". \t\u00a0-")
    name = " ".join(name.split()).encode()[:LONGEST_BYTES].decode(errors="ignore").strip(". -")
    return name or None


def lora_file(kind: str, output_name: str | None, *, step: int | None = None) -> str:
    """`my-dog.safetensors` for kohya, `my-dog-pytorch_lora_weights.safetensors` for diffusers.

    diffusers finds a file with this ending in a folder by itself. With `step`, the file is made from a checkpoint:
    `my-dog-000500.safetensors`.
    """
    stem = output_name if step is None else f"{output_name or 'lora'}-{step:06d}"
    if stem is None:
        return LORA_FILES[kind]
    return f"{stem}.safetensors" if kind == "kohya" else f"{stem}-{LORA_FILES[kind]}"


def embeddings_file(output_name: str | None, *, step: int | None = None) -> str:
    """The file with the rows of new tokens: `my-dog-embeddings.safetensors`."""
    stem = output_name if step is None else f"{output_name or 'lora'}-{step:06d}"
    return _after(stem, EMBEDDINGS)


def samples_file(output_name: str | None) -> str:
    """The file with the sample images of the finished job: `my-dog-samples.png`."""
    return _after(output_name, SAMPLES)


def by_step_file(output_name: str | None) -> str:
    """The file with the sample images of all steps: `my-dog-samples-by-step.png`."""
    return _after(output_name, BY_STEP)


def sheet_file(step: int, output_name: str | None) -> str:
    """The file with the sample images after a step: `my-dog-samples-00000100.png`."""
    return _after(output_name, f"samples-{step:08d}.png")


def _after(output_name: str | None, file: str) -> str:
    return file if output_name is None else f"{output_name}-{file}"
