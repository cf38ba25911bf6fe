"""What is trained."""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field, StringConstraints

from giornata.protocol.model import Message

if TYPE_CHECKING:
    from giornata.protocol.specs import TrainSpec


# No dot and no angle bracket: the word is part of a key in files, and tokens are called <s0>, <s1> …
Abstraction = Annotated[str, StringConstraints(pattern=r"^[^\s,;.<>]{1,32}$")]


TOKEN_FIELDS = (
    "train_text_encoder_ti_frac",
    "num_new_tokens_per_abstraction",
    "token_abstraction",
    "initializer_concept",
)


def _listed(words: Any) -> Any:
    return [word.strip() for word in words.split(",")] if isinstance(words, str) else words


class AdapterFields(Message):
    """What is trained."""

    rank: int = Field(16, ge=1, le=512, validation_alias=AliasChoices("rank", "network_dim"))
    alpha: float | None = Field(
        None,
        gt=0,
        le=4096,
        description="Defaults to rank.",
        validation_alias=AliasChoices("alpha", "network_alpha"),
    )
    target_modules: tuple[str, ...] = Field(
        ("to_k", "to_q", "to_v", "to_out.0"),
        min_length=1,
        max_length=64,
        description="Suffixes of UNet modules.",
    )
    use_rslora: bool = Field(False, description="Scale the adapter by alpha / sqrt(rank) instead of alpha / rank.")
    train_text_encoder: bool = Field(False, description="Also train adapters on both text encoders.")
    stop_text_encoder_training: int | None = Field(
        None, ge=1, description="Optimizer steps after which the text encoders' adapters stay as they are."
    )
    train_text_encoder_ti: bool = Field(
        False, description="Also train new tokens of both text encoders: textual inversion, pivotal tuning."
    )
    train_text_encoder_ti_frac: float = Field(
        0.5, gt=0, le=1, description="Part of the steps in which the new tokens learn, at text_encoder_lr."
    )
    num_new_tokens_per_abstraction: int = Field(2, ge=1, le=16)
    token_abstraction: Annotated[tuple[Abstraction, ...], BeforeValidator(_listed)] = Field(
        ("TOK",), min_length=1, max_length=8, description="What captions say for the new tokens."
    )
    initializer_concept: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="Words that the new tokens start as; by default they start as noise.",
        validation_alias=AliasChoices("initializer_concept", "init_word", "initializer_token"),
    )
    use_ema: bool = Field(False, description="The result is a running average of the weights.")
    ema_decay: float = Field(0.999, gt=0, lt=1, description="The average's inertia, once it has warmed up.")


def contradictions(spec: "TrainSpec") -> list[tuple[bool, str]]:
    """(whether it is one, what to say of it)."""
    return [
        (
            spec.stop_text_encoder_training is not None and not spec.train_text_encoder,
            "stop_text_encoder_training means nothing without train_text_encoder",
        ),
        *_token_contradictions(spec),
    ]


def _token_contradictions(spec: "TrainSpec") -> list[tuple[bool, str]]:
    wanted, words = spec.train_text_encoder_ti, spec.token_abstraction
    fields = AdapterFields.model_fields
    within = any(one in other for place, one in enumerate(words) for other in words[:place] + words[place + 1 :])
    return [
        *(
            (
                not wanted and getattr(spec, name) != fields[name].default,
                f"{name} means nothing without train_text_encoder_ti",
            )
            for name in TOKEN_FIELDS
        ),
        (wanted and within, "token_abstraction has a word that is part of another"),
        (
            wanted and any(word in (spec.class_prompt or "") for word in words),
            "class_prompt says a token_abstraction, but class pictures show what is known already",
        ),
        (
            wanted and spec.shuffle_caption and any(spec.caption_separator in word for word in words),
            "token_abstraction has the caption_separator in it",
        ),
    ]
