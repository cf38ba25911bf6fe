"""The page that goes with a LoRA: Markdown below a head of YAML, as model hubs read it.

It is a function of the spec, the pictures, the base and the file names alone: no time, no path, no attempt, so that
it has the same bytes however often the training was interrupted.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from giornata.diffusion.files.lora_facts import LoraFacts, public_name
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.base_model import BaseQuantization
from giornata.protocol.training.file_names import LORA_FILES
from giornata.protocol.training.results import SampleFields, TrackingFields

CARD = "README.md"
SPEC_KEY, DATASET_KEY, BASE_KEY = "giornata.spec_sha256", "giornata.dataset_sha256", "giornata.base_sha256"
QUANTIZATION_KEY = "giornata.base_quantization"
# Fields that decide when something is kept and what is written beside the weights, but never a weight.
BESIDE = frozenset(
    {
        "checkpointing_steps",
        "checkpoints_keep_latest",
        "checkpoints_keep_every",
        "class_dataset",
        "dataset",
        "hub_token_secret",
        "model_card",
        "output_formats",
        "output_name",
        "validate_every_n_steps",
        *SampleFields.model_fields,
        *TrackingFields.model_fields,
    }
)
MODEL_NAMES = ("pretrained_model_name_or_path", "pretrained_vae_model_name_or_path")
TAGS = ("text-to-image", "diffusers", "lora")
MOST_TAGS = 20


def recipe_sha256(spec: TrainSpec) -> str:
    """Hash everything in a spec that the weights depend on, except the pictures, which have a hash of their own.

    A local model folder counts by its name only, as its path differs from machine to machine.
    """
    fields = {name: value for name, value in spec.model_dump(mode="json").items() if name not in BESIDE}
    named = {name: public_name(fields[name]) for name in MODEL_NAMES if fields.get(name)}
    return hashlib.sha256(json.dumps(fields | named, sort_keys=True).encode("ascii")).hexdigest()


def hashes_of(spec: TrainSpec, *, data_sha256: str, base_sha256: str) -> dict[str, str]:
    """Return the hashes by which LoRA files and cards name their origin. `base_sha256` is that of
    giornata.diffusion.base.weights_digest."""
    narrow = spec.base_quantization is not BaseQuantization.NONE
    held = {QUANTIZATION_KEY: str(spec.base_quantization)} if narrow else {}
    return {SPEC_KEY: recipe_sha256(spec), DATASET_KEY: data_sha256, BASE_KEY: base_sha256} | held


def model_card(
    facts: LoraFacts,
    *,
    files: Sequence[str],
    parameters: int,
    extra: Mapping[str, str],
    samples: str | None = None,
) -> str:
    """Return the text of the page. `files` are the LoRA files beside it; `extra` is what their metadata say besides
    `facts`; `samples` is the sheet of pictures beside it, if there is one."""
    sections = [_head(facts), _title(facts)]
    sections += [] if samples is None else [_samples(facts, samples)]
    sections += [_triggers(facts), _usage(facts, files), _training(facts, parameters)]
    origin = "\n".join(["## Where it comes from", "", *(f"- `{key}`: `{value}`" for key, value in extra.items())])
    return "\n\n".join([*sections, origin]) + "\n"


def _head(facts: LoraFacts) -> str:
    """Return the head in YAML; a JSON string is a YAML string, whatever is in it."""
    lines = ["---", "library_name: diffusers", "license: other"]
    if "/" in facts.base_model:  # a folder's name means nothing to a hub
        lines.append(f"base_model: {_quoted(facts.base_model)}")
    if facts.trigger:
        lines.append(f"instance_prompt: {_quoted(facts.trigger)}")
    return "\n".join([*lines, "tags:", *(f"- {tag}" for tag in (*TAGS, *facts.family.hub_tags)), "---"])


def _title(facts: LoraFacts) -> str:
    about = f": {_plain(facts.trigger)}" if facts.trigger else ""
    words = f"A LoRA for `{_plain(facts.base_model)}`, trained on {facts.pictures} pictures in {facts.steps} steps."
    license = (
        "Its license follows from those of the base model and of the pictures; whoever publishes it has to name it."
    )
    return f"# LoRA{about}\n\n{words} {license}"


def _samples(facts: LoraFacts, name: str) -> str:
    prompts = "\n".join(f"- `{_plain(prompt)}`" for prompt in facts.spec.sample_prompts)
    picture = f"![Each prompt drawn by the base model alone, and with the LoRA from the same noise]({quote(name)})"
    return f"## Samples\n\n{picture}\n\n{prompts}"


def _triggers(facts: LoraFacts) -> str:
    lines = ["## Trigger words", ""]
    lines.append(
        f"Use `{_plain(facts.trigger)}` in the prompt." if facts.trigger else "Each picture had its caption."
    )
    most = sorted(facts.tag_counts.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_TAGS]
    if len(most) > 1:
        lines += ["", "In its captions: " + ", ".join(f"`{_plain(tag)}` ({count})" for tag, count in most) + "."]
    return "\n".join(lines)


def _usage(facts: LoraFacts, files: Sequence[str]) -> str:
    diffusers = next((name for name in files if name.endswith(LORA_FILES["diffusers"])), None)
    kohya = next((name for name in files if name != diffusers), None)
    lines = ["## How to use it"]
    if diffusers is not None or kohya is not None:
        name, prompt = diffusers or kohya, facts.trigger or "your prompt"
        lines += [
            "",
            "With diffusers:",
            "",
            "```python",
            "import torch",
            f"from diffusers import {facts.family.pipeline}",
            "",
            f"base = {_quoted(facts.base_model)}",
            f"pipe = {facts.family.pipeline}.from_pretrained(base, torch_dtype=torch.bfloat16)",
            f'pipe.to("cuda").load_lora_weights("FOLDER", weight_name={_quoted(str(name))})',
            f"pipe({_quoted(prompt)}).images[0]",
            "```",
        ]
    if kohya is not None:
        lines += [
            "",
            f"With ComfyUI: put `{kohya}` into `models/loras` and add a *Load LoRA* node.",
            "",
            f"With A1111 or Forge: put it into `models/Lora` and `<lora:{kohya.removesuffix('.safetensors')}:1>`",
            "into the prompt.",
        ]
    return "\n".join(lines)


def _training(facts: LoraFacts, parameters: int) -> str:
    spec = facts.spec
    batch = spec.train_batch_size * spec.gradient_accumulation_steps
    rows: list[tuple[str, Any]] = [
        ("steps", facts.steps),
        ("pictures per step", batch),
        ("resolution", f"{spec.resolution} x {spec.resolution}"),
        ("rank, alpha", f"{facts.rank}, {facts.alpha:g}"),
        ("parameters", f"{parameters:,}"),
        ("trained", ", ".join(facts.target_modules) + (" and text encoders" if spec.train_text_encoder else "")),
        ("optimizer", f"{spec.optimizer}, learning rate {spec.learning_rate:g}, {spec.lr_scheduler}"),
        ("prediction", facts.prediction_type),
        ("prior preservation", _plain(spec.class_prompt) if spec.class_prompt else "no"),
        ("precision", spec.mixed_precision),
        ("seed", spec.seed),
    ]
    if spec.base_quantization is not BaseQuantization.NONE:
        rows.append(("base", f"its UNet held in 8 bits ({spec.base_quantization})"))
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return f"## How it was trained\n\n| | |\n|---|---|\n{table}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _plain(text: str) -> str:
    """Make a user's words fit a line of Markdown: on one line, and nothing in them ends a code span or a table's
    cell."""
    return " ".join(text.replace("`", "'").replace("|", "/").split())
