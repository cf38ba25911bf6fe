"""All fields of a training job, and what is computed from several sections of them."""

from giornata.domain.files.caption_length import Count, longest_order
from giornata.protocol.training.adapter import AdapterFields
from giornata.protocol.training.base_model import BaseModelFields
from giornata.protocol.training.data import DataFields, HeldOutFields, PriorFields
from giornata.protocol.training.objective import ObjectiveFields, RegularizationFields
from giornata.protocol.training.optimization import OptimizationFields
from giornata.protocol.training.results import ResultFields, SampleFields, TrackingFields


class TrainFields(  # pydantic collects fields from the last to the first
    TrackingFields,
    SampleFields,
    ResultFields,
    OptimizationFields,
    ObjectiveFields,
    RegularizationFields,
    AdapterFields,
    PriorFields,
    HeldOutFields,
    DataFields,
    BaseModelFields,
):
    """Every field of a training job, not yet checked against the others."""


def validated_steps(spec: TrainFields) -> tuple[int, ...]:
    """The steps after which the loss on held-out pictures is measured; empty for jobs that hold none out."""
    if spec.validation_split == 0:
        return ()
    every, total = spec.validate_every_n_steps, spec.max_train_steps
    return (*range(every, total, every), total)


def held_count(spec: TrainFields, pictures: int) -> int:
    """The number of held-out pictures among so many: at least one."""
    split = spec.validation_split
    return int(split) if split >= 1 else max(1, round(split * pictures))


def words_of(spec: TrainFields) -> dict[str, tuple[str, ...]]:
    """The tokens of each abstraction: TOK → (<s0>, <s1>); empty without new tokens."""
    if not spec.train_text_encoder_ti:
        return {}
    each = spec.num_new_tokens_per_abstraction
    return {
        word: tuple(f"<s{number}>" for number in range(place * each, (place + 1) * each))
        for place, word in enumerate(spec.token_abstraction)
    }


def spoken(spec: TrainFields, caption: str) -> str:
    """The caption as the text encoders hear it."""
    for word, tokens in words_of(spec).items():
        caption = caption.replace(word, "".join(tokens))
    return caption


def longest_spoken(spec: TrainFields, caption: str, count: Count) -> str:
    """The caption of a subject's picture as the text encoders hear it, in the order that has the most tokens."""
    if not spec.shuffle_caption:
        return spoken(spec, caption)
    ordered = longest_order(
        caption,
        separator=spec.caption_separator,
        kept=spec.keep_tokens,
        keep_separator=spec.keep_tokens_separator,
        count=lambda part: count(spoken(spec, part)),
    )
    return spoken(spec, ordered)
