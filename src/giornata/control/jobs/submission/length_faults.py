"""Find captions and prompts with more tokens than a job's text encoders read, before a GPU is rented for the job.

The node counts them once more, with the base model's own tokenizers, and has the last word.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError

from giornata.domain.clip import token_count
from giornata.domain.errors import Fault
from giornata.domain.files.caption_length import too_long
from giornata.protocol.specs import TrainSpec, canonical_names
from giornata.protocol.training.model_names import has_clip_vocabulary
from giornata.protocol.training.train_fields import longest_spoken, spoken

TELLING = (
    *("max_token_length", "truncate_captions", "shuffle_caption", "keep_tokens", "caption_separator"),
    "keep_tokens_separator",
    *("train_text_encoder_ti", "num_new_tokens_per_abstraction", "token_abstraction"),
)
"""Fields that decide how many tokens a caption has, and how many fit."""

Named = tuple[str, str]
"""Where a text stands, and the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthCheck:
    """Counts the tokens of texts for a job. `spec` says how many fit; None when nothing is counted."""

    spec: TrainSpec | None

    def of_captions(self, captions: Iterable[Named]) -> list[Fault]:
        """Return faults of the captions of the subject's pictures. Shuffled ones have to fit in any order."""
        spec = self.spec
        if spec is None:
            return []
        count = partial(token_count, with_new_tokens=spec.train_text_encoder_ti)
        return self._too_long((where, longest_spoken(spec, text, count)) for where, text in captions)

    def of_texts(self, texts: Iterable[Named]) -> list[Fault]:
        """Return faults of prompts, and of the captions of class pictures."""
        spec = self.spec
        return [] if spec is None else self._too_long((where, spoken(spec, text)) for where, text in texts)

    def _too_long(self, heard: Iterable[Named]) -> list[Fault]:
        if self.spec is None:
            return []
        limit = self.spec.max_token_length
        # A token has at least one byte, so what is as short as this fits.
        doubtful = (each for each in heard if len(each[1]) > limit or not each[1].isascii())
        count = partial(token_count, with_new_tokens=self.spec.train_text_encoder_ti)
        return too_long(doubtful, count=count, limit=limit)


def length_check(
    given: Mapping[str, Any], parsed: TrainSpec | None, *, knows_clip: Callable[[str], bool] = has_clip_vocabulary
) -> LengthCheck:
    """Return the length check of a job. Nothing is counted for a base model that may have another vocabulary than
    CLIP's, nor where the job cuts what is too long.

    `given` is the spec as it came, and `parsed` what it means, if that is known: faults of other fields hide nothing.
    """
    fields, _ = canonical_names(TrainSpec, given)
    model = fields.get("pretrained_model_name_or_path")
    if not isinstance(model, str) or not knows_clip(model):
        return LengthCheck(spec=None)
    spec = parsed or _telling(fields)
    return LengthCheck(spec=None if spec is None or spec.truncate_captions else spec)


def prompts_of(given: Mapping[str, Any]) -> list[Named]:
    """Return the prompts in a spec as it came, under the names of their fields."""
    fields, _ = canonical_names(TrainSpec, given)
    several = fields.get("sample_prompts")
    numbered = enumerate(several if isinstance(several, list | tuple) else ())
    named = [(name, fields.get(name)) for name in ("instance_prompt", "class_prompt")]
    named += [(f"sample_prompts.{number}", prompt) for number, prompt in numbered]
    return [(f"spec.{name}", prompt) for name, prompt in named if isinstance(prompt, str)]


def within(captions: Iterable[Named], *, most_chars: int) -> Iterator[Named]:
    """Yield captions from the first one on, as long as they have at most so many characters together."""
    chars = 0
    for where, text in captions:
        chars += len(text)
        if chars > most_chars:
            return
        yield where, text


def _telling(fields: Mapping[str, Any]) -> TrainSpec | None:
    """Return a spec with the fields that count; None when these make no sense, which has faults of its own."""
    told = {name: fields[name] for name in TELLING if name in fields}
    try:
        return TrainSpec.model_validate({"pretrained_model_name_or_path": "m", "dataset": "ds_0", **told})
    except ValidationError:
        return None
