"""Reads textual inversions: vectors that stand for a word of a prompt (Gal et al., 2022, arXiv 2208.01618).

    emb_params                       SD 1.5, as Stable Diffusion web UI writes it
    clip_l and clip_g                SDXL, one for each text encoder; SD 1.5 has the first alone; our own export too
    bundle_emb.<word>.clip_l …       words inside a LoRA's file
    one tensor of any name           SD 1.5, as diffusers writes it

Shapes: N vectors of a word, E the width of a text encoder's embeddings. Only safetensors files are read: others are
pickled, and can run code when they are opened.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError

from giornata.diffusion.adapter.tokens import BUNDLE, ENCODERS, TOKENS
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.encode.prompt_embeds import TextualInversion
from giornata.diffusion.families import SD15, SDXL
from giornata.diffusion.tensor_file import read_tensors, sha256_of_file
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.files.caption_length import CHUNK

EMB_PARAMS = "emb_params"
PICKLE_BEGINNINGS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x04", b"\x80\x05")
HINT = "give a .safetensors file of a textual inversion"


def read_textual_inversion(path: Path, token: str, base: BaseModel, *, where: str | None = None) -> TextualInversion:
    """Read the vectors that `token` stands for. Raises InvalidInput, at `where`, with every fault: a pickled file,
    one of another family, vectors of another width or too many of them, values that are not finite."""
    where = where or str(path)
    try:
        _, content = read_tensors(path)
    except (OSError, SafetensorError) as error:
        raise InvalidInput([_unreadable(path, error, where)]) from error
    return inversion_of(content, token, base, sha256=sha256_of_file(path), where=where)


def inversion_of(
    content: Mapping[str, torch.Tensor], token: str, base: BaseModel, *, sha256: str, where: str
) -> TextualInversion:
    """Take the vectors of `token` out of a file's tensors; otherwise as `read_textual_inversion`."""
    found = _vectors(content, token)
    wanted = ENCODERS[: len(base.text_encoders)]
    if faults := [*_family_faults(found, wanted, base, where), *_vector_faults(found, wanted, base, where)]:
        raise InvalidInput(faults)
    return TextualInversion(token=token, sha256=sha256, vectors_NE=tuple(found[name].float() for name in wanted))


def bundled_words(content: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the words that a LoRA's file brings along."""
    names = (key.removeprefix(BUNDLE).rpartition(".")[0] for key in content if key.startswith(BUNDLE))
    return list(dict.fromkeys(names))


def _unreadable(path: Path, error: Exception, where: str) -> Fault:
    try:
        with path.open("rb") as opened:
            beginning = opened.read(4)
    except OSError:
        beginning = b""
    if beginning.startswith(PICKLE_BEGINNINGS):
        return Fault(where=where, message="is pickled, and such files are never opened", hint=HINT)
    return Fault(where=where, message=f"cannot be read: {error}", hint=HINT)


def _vectors(content: Mapping[str, torch.Tensor], token: str) -> dict[str, torch.Tensor]:
    """Return N × E by `clip_l` and `clip_g`; nothing when the file has no known form."""
    for start in (f"{BUNDLE}{token}.", TOKENS, ""):
        named = {name: content[start + name] for name in ENCODERS if start + name in content}
        if named:
            return {name: _lying(tensor) for name, tensor in named.items()}
    alone = content.get(EMB_PARAMS)
    if alone is None and len(content) == 1:
        (alone,) = content.values()
    return {} if alone is None else {ENCODERS[0]: _lying(alone)}


def _lying(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[None] if tensor.ndim == 1 else tensor


def _family_faults(
    found: Mapping[str, torch.Tensor], wanted: tuple[str, ...], base: BaseModel, where: str
) -> Iterator[Fault]:
    if not found:
        yield Fault(where=where, message="holds no textual inversion that is known here", hint=HINT)
    elif set(found) != set(wanted):
        family = SDXL if len(found) > len(wanted) else SD15
        message = f"is of {family.title}, and the base model is of {base.family.title}"
        yield Fault(where=where, message=message, hint="take one of the same kind of base model")


def _vector_faults(
    found: Mapping[str, torch.Tensor], wanted: tuple[str, ...], base: BaseModel, where: str
) -> Iterator[Fault]:
    for name, encoder in zip(wanted, base.text_encoders, strict=True):
        vectors_NE = found.get(name)
        width = encoder.get_input_embeddings().weight.shape[1]
        if vectors_NE is None:
            continue
        if vectors_NE.ndim != 2 or vectors_NE.shape[1] != width:
            message = f"has {name} of {' x '.join(map(str, vectors_NE.shape))}, and the base needs N x {width}"
            yield Fault(where=where, message=message, hint="take one of the same kind of base model")
        elif not 1 <= len(vectors_NE) <= CHUNK:
            message = f"has {len(vectors_NE)} vectors in {name}, and 1 to {CHUNK} fit"
            yield Fault(where=where, message=message, hint="take a smaller one")
        elif not bool(torch.isfinite(vectors_NE).all()):
            yield Fault(where=where, message=f"has values in {name} that are not finite", hint="leave it out")
    counts = {len(tensor) for name, tensor in found.items() if name in wanted}
    if len(counts) > 1:
        message = "has another number of vectors for each text encoder"
        yield Fault(where=where, message=message, hint="is the file whole?")
