"""Texts in a result file about its picture, by name. `picture_params_of` reads them back from a file.

`parameters` is A1111's text, `prompt` and `workflow` are ComfyUI's, and `giornata` is our JSON: every setting, the
sha256 of every model, and the versions it was made with. Nothing depends on the order, the node or the time, so equal
pictures are equal files.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from giornata import __version__
from giornata.protocol.generation.picture import PictureParams
from giornata.protocol.generation.picture_fields import PictureFields
from giornata.protocol.generation.texts.a1111_text import a1111_text, fields_of_a1111
from giornata.protocol.generation.texts.comfyui_workflow import comfyui_workflow
from giornata.protocol.generation.texts.image_text import texts_of

A1111 = "parameters"
COMFYUI_PROMPT = "prompt"
COMFYUI_WORKFLOW = "workflow"
OURS = "giornata"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureReading:
    """The content of a file: the fields of a `generate` spec, where they are from, and what cannot be repeated."""

    fields: Mapping[str, Any]
    source: str
    notes: tuple[str, ...] = ()


def metadata_of(params: PictureParams, *, made_with: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of a picture's file; none where its settings want none. `made_with` are versions by name,
    such as those of torch and diffusers, and the device.
    """
    if not params.metadata:
        return {}
    flow = comfyui_workflow(params)
    told = {"format": FORMAT, "params": params.model_dump(mode="json"), "made_with": dict(sorted(made_with.items()))}
    return {
        A1111: a1111_text(params, version=f"giornata {__version__}"),
        COMFYUI_PROMPT: _compact(flow.as_prompt()),
        COMFYUI_WORKFLOW: _compact(flow.as_workflow()),
        OURS: _compact(told),
    }


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def picture_params_of(data: bytes) -> PictureReading:
    """Return the settings in a PNG, JPEG or WebP file, ours or A1111's. Raises ValueError for a file without."""
    texts = texts_of(data)
    if OURS in texts:
        return _of_ours(texts[OURS])
    if A1111 in texts:
        fields, notes = fields_of_a1111(texts[A1111])
        return PictureReading(fields=fields, source="A1111's parameters", notes=notes)
    if COMFYUI_PROMPT in texts:
        raise ValueError("the file has a workflow of ComfyUI alone, which may do anything; it is not read")
    raise ValueError("the file says nothing about how it was made")


def _of_ours(text: str) -> PictureReading:
    try:
        told = json.loads(text)
        params = PictureParams.model_validate(told["params"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the file's text {OURS!r} is not one that this version reads") from error
    given = params.model_dump(mode="json", exclude={"prompt"})
    fields = {name: value for name, value in given.items() if name in PictureFields.model_fields}
    return PictureReading(fields={"prompts": [params.prompt], **fields}, source="our settings")
