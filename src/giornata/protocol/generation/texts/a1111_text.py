"""The text `parameters` that A1111 writes into its pictures: made from a picture's settings, and read back.

The text is the prompt, a line `Negative prompt: …`, and a last line of `Name: value` pairs between commas. A value
with a comma, a colon or a line break is a JSON string.
"""

import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from giornata.domain.generation.prompt_choices import WILDCARD_NAME
from giornata.protocol.generation.picture import ModelUse, PictureParams
from giornata.protocol.generation.schedulers import all_schedulers, canonical_scheduler

NEGATIVE = "Negative prompt:"
HASH_CHARS = 10
"""Characters of a sha256 that A1111 shows as a model's hash."""
LEAST_PAIRS = 3
"""A last line with fewer pairs belongs to the prompt."""
DEFAULT_CLIP_SKIP = 1
HIRES_STRENGTH = 0.7
SWITCH_AT = 0.8
"""Values where the text has none."""
REPEATED = frozenset(
    {
        *("Steps", "Sampler", "Schedule type", "CFG scale", "Seed", "Size", "Clip skip", "Denoising strength"),
        *("Model", "Model hash", "VAE", "VAE hash", "Lora hashes", "Refiner", "Refiner switch at"),
        *("Hires upscale", "Hires resize", "Hires steps", "RNG", "Version"),
    }
)
"""Pairs that fields of a spec repeat, and such as say nothing about the picture."""
LATENT_UPSCALER = "Latent"
AUTOMATIC, UNIFORM = "Automatic", "Uniform"
OURS = "giornata"
AUTOMATIC_SCHEDULES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("DPM++ 2M", "DPM++ SDE", "DPM++ 2S a", "DPM2", "DPM2 a", "Restart"), "Karras"),
        **dict.fromkeys(("DPM++ 2M SDE", "DPM++ 2M SDE Heun", "DPM++ 3M SDE"), "Exponential"),
    }
)
"""The noise schedule that `Automatic` means for a sampler of A1111 since 1.9. With any other sampler it means none.

It is the option `scheduler` of `samplers_k_diffusion` in `modules/sd_samplers_kdiffusion.py` of
AUTOMATIC1111/stable-diffusion-webui, which `KDiffusionSampler.get_sigmas` there takes for `Automatic`. Texts of
earlier versions name no schedule apart from the sampler.
"""
_PAIR = re.compile(r'\s*([^:,"]+):\s*("(?:\\.|[^"\\])*"|[^,]*)(?:,|$)')
_NUMBER = re.compile(r"[+-]?\d{1,20}(?:\.\d{0,20})?", re.ASCII)
_SIZE = re.compile(r"(\d+)\s*x\s*(\d+)")
_BARE_CHOICE = re.compile(rf"(?<!\\)(?:[{{}}|]|__(?={WILDCARD_NAME.pattern}__))")


def a1111_text(params: PictureParams, *, version: str) -> str:
    """Return the text of a picture. LoRAs stand in the prompt, as A1111 has them."""
    marks = "".join(
        f" <lora:{stem(lora)}:{_weights(lora.weight, lora.text_encoder_weight)}>" for lora in params.loras
    )
    lines = [params.prompt + marks]
    if params.negative_prompt:
        lines.append(f"{NEGATIVE} {params.negative_prompt}")
    told = [f"{name}: {_quoted(value)}" for name, value in _pairs(params, version) if value is not None]
    return "\n".join([*lines, ", ".join(told)])


def _pairs(params: PictureParams, version: str) -> Iterator[tuple[str, str | None]]:
    sampler, schedule = _sampler(params.scheduler)
    yield "Steps", str(params.num_inference_steps)
    yield "Sampler", sampler
    yield "Schedule type", schedule
    yield "CFG scale", f"{params.guidance_scale:g}"
    yield "Seed", str(params.seed)
    yield "Size", f"{params.width}x{params.height}"
    yield "Model hash", _short(params.model)
    yield "Model", stem(params.model)
    if params.vae is not None:
        yield "VAE hash", _short(params.vae)
        yield "VAE", stem(params.vae)
    if params.image is not None:
        yield "Denoising strength", f"{params.strength:g}"
    yield "Clip skip", None if params.clip_skip is None else str(params.clip_skip + DEFAULT_CLIP_SKIP)
    if (second := params.high_resolution) is not None:
        yield "Denoising strength", f"{second.strength:g}"
        yield "Hires resize", f"{second.width}x{second.height}"
        yield "Hires steps", str(second.num_inference_steps or params.num_inference_steps)
        yield "Hires upscaler", "Latent"
    for number, control in enumerate(params.controlnets):
        ends = f"Weight: {control.weight:g}, Guidance Start: {control.start:g}, Guidance End: {control.end:g}"
        yield f"ControlNet {number}", f"Module: {control.annotator or 'none'}, Model: {stem(control)}, {ends}"
    yield "Lora hashes", _hashes(params.loras)
    yield "TI hashes", _hashes(params.embeddings)
    if params.refiner is not None:
        hashed = _short(params.refiner.model)
        yield "Refiner", stem(params.refiner.model) + (f" [{hashed}]" if hashed else "")
        yield "Refiner switch at", f"{params.refiner.switch_at:g}"
    yield "RNG", "CPU"
    yield "Version", version


def _sampler(name: str) -> tuple[str, str | None]:
    """Return sampler and schedule by A1111's names; the canonical name where A1111 has none.

    The base model's own schedule is `Uniform` where A1111 would take another one for `Automatic`.
    """
    sampler, schedule = all_schedulers()[name].a1111
    if schedule == AUTOMATIC and sampler in AUTOMATIC_SCHEDULES:
        schedule = UNIFORM
    return (sampler, schedule) if sampler else (name, None)


def stem(model: ModelUse) -> str:
    """Return the name of a model's file without its ending, in which no character is one of the grammar."""
    return re.sub(r"[<>:,\"{}|]", "_", re.split(r"[/\\]", model.name.removesuffix(".safetensors"))[-1])


def _short(model: ModelUse) -> str | None:
    return None if model.sha256 is None else model.sha256[:HASH_CHARS]


def _hashes(models: tuple[ModelUse, ...]) -> str | None:
    told = ", ".join(f"{stem(model)}: {_short(model)}" for model in models if model.sha256 is not None)
    return told or None


def _weights(weight: float, text_encoder: float | None) -> str:
    return f"{weight:g}" if text_encoder in {None, weight} else f"{text_encoder:g}:{weight:g}"


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False) if re.search(r'[,:\n"]', value) else value


def pairs_of(line: str) -> dict[str, str]:
    """Return the pairs of the last line of a text; empty when the line is none of A1111's."""
    found: dict[str, str] = {}
    place = 0
    while match := _PAIR.match(line, place):
        name, value = match[1].strip(), match[2].strip()
        found.setdefault(name, _unquoted(value))
        place = match.end()
        if place == len(line):
            break
    return found if place == len(line) and len(found) >= LEAST_PAIRS else {}


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        return str(json.loads(value, strict=False))
    except ValueError:
        return value


def fields_of_a1111(text: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields of a `generate` spec that the text tells, and what it names and no field can repeat.

    The prompt's braces become text, because A1111 draws nothing from them. Raises ValueError for another text.
    """
    lines = text.strip().split("\n")
    pairs = pairs_of(lines[-1])
    if "Steps" not in pairs:
        raise ValueError("the text has no last line such as Steps: 30, Sampler: Euler a, Seed: 1, Size: 512x512")
    prompt, _, negative = "\n".join(lines[:-1]).partition(f"\n{NEGATIVE}")
    if prompt.startswith(NEGATIVE):
        prompt, negative = "", prompt.removeprefix(NEGATIVE)
    fields: dict[str, Any] = {"prompts": [_literal(prompt.strip())], "negative_prompt": _literal(negative.strip())}
    notes: list[str] = []
    _read_numbers(pairs, fields)
    _read_scheduler(pairs, fields, notes)
    _read_models(pairs, fields)
    if "Denoising strength" in pairs and "high_resolution" not in fields:
        notes.append("the picture it began from is not in the file; give it as image")
        fields["strength"] = _number(pairs, "Denoising strength")
    if pairs.get("TI hashes"):
        notes.append(f"its prompt has textual inversions ({pairs['TI hashes']}); give them as embeddings")
    if pairs.get("Hires upscaler", LATENT_UPSCALER) != LATENT_UPSCALER:
        notes.append(f"Hires upscaler {pairs['Hires upscaler']} cannot be repeated; the second pass enlarges latents")
    told = REPEATED | {"TI hashes", "Hires upscaler"}
    notes += [f"{name} cannot be repeated" for name in pairs if name not in told]
    if pairs.get("RNG") != "CPU":
        notes.append("A1111 drew the noise on its GPU, so the picture will look alike and not be the same")
    return fields, tuple(notes)


def _literal(prompt: str) -> str:
    """Return the prompt with backslashes where a choice or wildcard would begin."""
    return _BARE_CHOICE.sub(lambda found: "".join(f"\\{character}" for character in found[0]), prompt)


def _read_numbers(pairs: Mapping[str, str], fields: dict[str, Any]) -> None:
    fields["num_inference_steps"] = int(_number(pairs, "Steps"))
    if "CFG scale" in pairs:
        fields["guidance_scale"] = _number(pairs, "CFG scale")
    if "Seed" in pairs:
        fields["seed"] = int(_number(pairs, "Seed"))
    if size := _SIZE.fullmatch(pairs.get("Size", "")):
        fields["width"], fields["height"] = int(size[1]), int(size[2])
    if (skipped := int(_number(pairs, "Clip skip", DEFAULT_CLIP_SKIP)) - DEFAULT_CLIP_SKIP) > 0:
        fields["clip_skip"] = skipped
    if (larger := _larger(pairs, fields)) is not None:
        strength = _number(pairs, "Denoising strength", HIRES_STRENGTH)
        second = {"width": larger[0], "height": larger[1], "strength": strength}
        steps = int(_number(pairs, "Hires steps", 0))
        fields["high_resolution"] = second | ({"num_inference_steps": steps} if steps else {})


def _number(pairs: Mapping[str, str], name: str, otherwise: float = 0) -> float:
    """Return a number of the last line. Raises ValueError for another text."""
    text = pairs.get(name, str(otherwise))
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"{name} is {text[:40]!r}, which is no number")
    return int(text) if text.isdecimal() else float(text)


def _larger(pairs: Mapping[str, str], fields: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the size of the second pass, if there was one."""
    if size := _SIZE.fullmatch(pairs.get("Hires resize", "")):
        return int(size[1]), int(size[2])
    if "Hires upscale" not in pairs or "width" not in fields:
        return None
    factor = _number(pairs, "Hires upscale")
    return int(fields["width"] * factor) // 8 * 8, int(fields["height"] * factor) // 8 * 8


def _read_scheduler(pairs: Mapping[str, str], fields: dict[str, Any], notes: list[str]) -> None:
    sampler, schedule = pairs.get("Sampler", ""), pairs.get("Schedule type", "")
    if schedule == AUTOMATIC and not pairs.get("Version", "").startswith(OURS):
        schedule = AUTOMATIC_SCHEDULES.get(sampler, AUTOMATIC)
    for spelled in dict.fromkeys((f"{sampler} {schedule}".strip(), sampler)):
        try:
            fields["scheduler"] = canonical_scheduler(spelled)
        except ValueError as error:
            notes.append(f"Sampler {spelled}: {error}")
        else:
            return


def _read_models(pairs: Mapping[str, str], fields: dict[str, Any]) -> None:
    for name, pair in (("model", "Model"), ("vae", "VAE")):
        if pairs.get(pair):
            fields[name] = {"name": pairs[pair]}
    if pairs.get("Refiner"):
        model = {"name": re.sub(r" \[[0-9a-f]+\]$", "", pairs["Refiner"])}
        fields["refiner"] = {"model": model, "switch_at": _number(pairs, "Refiner switch at", SWITCH_AT)}
