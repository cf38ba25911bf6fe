"""What the small models share: SDXL's noise schedule, CLIP's text configuration and tokenizer at a small size."""

import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from diffusers import EulerDiscreteScheduler
from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPTextConfig, CLIPTokenizer

from giornata.diffusion.families import SDXL, Family
from giornata.diffusion.model_folder import check_model_folder, family_of_folder
from giornata.domain.errors import Fault, InvalidInput

MAX_TOKENS = 77
SCHEDULE = {
    "num_train_timesteps": 1000,
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "beta_end": 0.012,
}
PAD_TOKENS = ("<|endoftext|>", "!")  # SDXL's two tokenizers differ in nothing else


def place_model(directory: Path, write: Callable[[Path], object], *, family: Family = SDXL) -> Path:
    """Let `write` make a model folder at `directory` and return that. A complete one of the family is kept.

    It is made aside and renamed, so nobody ever sees half of it. Raises InvalidInput when something else is at
    `directory`.
    """
    if _complete(directory, family):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}-") as aside:
        built = Path(aside) / "model"
        write(built)
        for weights in built.rglob("*.safetensors"):
            weights.chmod(0o644)  # the library makes them private
        try:
            built.rename(directory)
        except OSError as error:
            if not _complete(directory, family):  # somebody else may have been quicker
                fault = Fault(
                    where=str(directory),
                    message=f"is there already, and is not a complete {family.title} model",
                    hint="remove it, or name another folder",
                )
                raise InvalidInput([fault]) from error
    return directory


def _complete(directory: Path, family: Family) -> bool:
    return directory.is_dir() and not check_model_folder(directory) and family_of_folder(directory) is family


def scheduler(prediction_type: str) -> EulerDiscreteScheduler:
    """SDXL's own settings."""
    return EulerDiscreteScheduler(
        **SCHEDULE, prediction_type=prediction_type, timestep_spacing="leading", steps_offset=1
    )


def text_config(tokenizer: CLIPTokenizer, *, hidden: int) -> CLIPTextConfig:
    """Two layers with four heads, of this width."""
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        projection_dim=hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=MAX_TOKENS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def tokenizer(words: Sequence[str], *, pad_token: str, whole: bool = False) -> CLIPTokenizer:
    """CLIP's byte-level BPE over all 256 bytes, so that any text tokenises, with merges for `words`.

    A merge of one word may cut another in two; with `whole`, each word is one token for certain.
    """
    alphabet = sorted(ByteLevel.alphabet())
    merges = _merges(words, whole=whole)
    tokens = [*alphabet, *(f"{char}</w>" for char in alphabet), *(left + right for left, right in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=merges,
        pad_token=pad_token,
        model_max_length=MAX_TOKENS,
    )


def _merges(words: Sequence[str], *, whole: bool) -> list[tuple[str, str]]:
    """Left to right within each word: (d, o), (do, g</w>). With `whole`, of what the merges so far leave of it."""
    merges: dict[tuple[str, str], None] = {}
    for word in words:
        symbols = [*word[:-1], f"{word[-1]}</w>"]
        if whole:
            symbols = _merged(symbols, list(merges))
        joined = symbols[0]
        for symbol in symbols[1:]:
            merges[joined, symbol] = None
            joined += symbol
    return list(merges)


def _merged(symbols: list[str], merges: Sequence[tuple[str, str]]) -> list[str]:
    """Byte-pair encoding: of all pairs of neighbours, the one whose merge came first is joined, again and again."""
    rank = {pair: number for number, pair in enumerate(merges)}
    while pairs := [pair for pair in pairwise(symbols) if pair in rank]:
        first = min(pairs, key=lambda pair: rank[pair])
        place = list(pairwise(symbols)).index(first)
        symbols = [*symbols[:place], "".join(first), *symbols[place + 2 :]]
    return symbols
