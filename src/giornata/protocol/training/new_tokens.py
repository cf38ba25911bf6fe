"""What captions say for the new tokens of text encoders, and what the text encoders hear instead."""

from typing import TYPE_CHECKING

from giornata.domain.caption_length import Count, longest_order

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec


def words_of(spec: "TrainSpec") -> dict[str, tuple[str, ...]]:
    """What each abstraction stands for: TOK → (<s0>, <s1>); empty when there are no new tokens."""
    if not spec.train_text_encoder_ti:
        return {}
    each = spec.num_new_tokens_per_abstraction
    return {
        word: tuple(f"<s{number}>" for number in range(place * each, (place + 1) * each))
        for place, word in enumerate(spec.token_abstraction)
    }


def spoken(spec: "TrainSpec", caption: str) -> str:
    """The caption as the text encoders hear it."""
    for word, tokens in words_of(spec).items():
        caption = caption.replace(word, "".join(tokens))
    return caption


def longest_spoken(spec: "TrainSpec", caption: str, count: Count) -> str:
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
