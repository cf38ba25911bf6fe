"""The weights that a training job learns."""

import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, StringConstraints

from giornata.protocol.model import Message, Sha256


class AdapterType(StrEnum):
    """The kinds of adapters, by the names of LyCORIS; kohya's modules are understood as well."""

    LORA = "lora"
    LOKR = "lokr"


KOHYA_MODULES = {"networks.lora": AdapterType.LORA, "locon": AdapterType.LORA}
TEXT_TARGETS = ("q_proj", "k_proj", "v_proj", "out_proj")


def _adapter_type(name: Any) -> Any:
    plain = name.strip().lower() if isinstance(name, str) else name
    return KOHYA_MODULES.get(plain, plain) if isinstance(plain, str) else plain


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{text!r} is neither the end of a layer's name nor a regular expression: {error}") from None
    return text


def _parts(given: Any) -> Any:
    """A comma list, as diffusers' script takes it, or a list."""
    return [part.strip() for part in given.split(",")] if isinstance(given, str) else given


def _block(name: str) -> str:
    return name.removeprefix("unet.")


Pattern = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(_pattern)]
Block = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(_block)]
Rank = Annotated[int, Field(ge=1, le=512)]
Alpha = Annotated[float, Field(gt=0, le=4096)]
# No dot and no angle bracket: the word is part of a key in files, and tokens are called <s0>, <s1> …
Abstraction = Annotated[str, StringConstraints(pattern=r"^[^\s,;.<>]{1,32}$")]


def _listed(words: Any) -> Any:
    return [word.strip() for word in words.split(",")] if isinstance(words, str) else words


class AdapterFields(Message):
    """The adapter and what it is attached to."""

    adapter_type: Annotated[AdapterType, BeforeValidator(_adapter_type)] = Field(
        AdapterType.LORA,
        description="Type of the adapter: LoRA, or LyCORIS LoKr (Kronecker products).",
        validation_alias=AliasChoices("adapter_type", "network_module", "algo"),
    )
    rank: int = Field(
        16,
        ge=1,
        le=512,
        description="Rank of the adapter's matrices. A higher rank can learn more, and makes a larger file.",
        validation_alias=AliasChoices("rank", "network_dim"),
    )
    alpha: float | None = Field(
        None,
        gt=0,
        le=4096,
        description="Strength of the adapter, which is scaled by alpha / rank. Default: the rank, which scales by 1.",
        validation_alias=AliasChoices("alpha", "network_alpha"),
    )
    target_modules: tuple[str, ...] = Field(
        ("to_k", "to_q", "to_v", "to_out.0"),
        min_length=1,
        max_length=64,
        description="Ends of the names of UNet modules that get an adapter.",
    )
    lora_unet_blocks: Annotated[tuple[Block, ...] | None, BeforeValidator(_parts)] = Field(
        None,
        min_length=1,
        max_length=256,
        description="Blocks of the UNet that get adapters, such as up_blocks.0.attentions.1. Default: all blocks.",
    )
    rank_pattern: dict[Pattern, Rank] = Field(
        {},
        max_length=256,
        description='Ranks for layers whose name ends with or matches the key, such as {"attn2.to_k": 4}. Other '
        "layers have the field rank.",
    )
    alpha_pattern: dict[Pattern, Alpha] = Field(
        {},
        max_length=256,
        description="Alphas for layers whose name ends with or matches the key. Other layers have the field alpha.",
    )
    use_rslora: bool = Field(False, description="Scale the adapter by alpha / sqrt(rank) instead of alpha / rank.")
    use_dora: bool = Field(
        False,
        description="Train DoRA: magnitude and direction of each output's weights separately. Steps take longer.",
        validation_alias=AliasChoices("use_dora", "dora_wd"),
    )
    decompose_both: bool = Field(
        False, description="With LoKr: also make the first factor of two low-rank matrices, for a smaller file."
    )
    decompose_factor: int = Field(
        -1,
        ge=-1,
        le=4096,
        description="With LoKr: size of the first factor. -1 chooses one near the square root.",
        validation_alias=AliasChoices("decompose_factor", "factor"),
    )
    init_lora: Sha256 | None = Field(
        None,
        description="sha256 of an uploaded LoRA to start from, with kohya's or diffusers' key names, or of a "
        "checkpoint of Giornata. Default: a new adapter.",
        validation_alias=AliasChoices("init_lora", "network_weights"),
    )
    train_text_encoder: bool = Field(
        False, description="Also train adapters on the text encoders, at text_encoder_lr."
    )
    text_encoder_target_modules: tuple[str, ...] = Field(
        TEXT_TARGETS,
        min_length=1,
        max_length=64,
        description="With train_text_encoder: ends of the names of text encoder modules that get an adapter.",
    )
    stop_text_encoder_training: int | None = Field(
        None, ge=1, description="Number of steps after which the text encoders' adapters are frozen. Default: never."
    )
    train_text_encoder_ti: bool = Field(
        False, description="Also train new tokens of the text encoders (textual inversion, pivotal tuning)."
    )
    train_text_encoder_ti_frac: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Share of the steps, from the first, in which new tokens are trained, at text_encoder_lr.",
    )
    num_new_tokens_per_abstraction: int = Field(
        2,
        ge=1,
        le=16,
        description="Number of new tokens for each word of token_abstraction.",
        validation_alias=AliasChoices("num_new_tokens_per_abstraction", "num_vectors_per_token"),
    )
    token_abstraction: Annotated[tuple[Abstraction, ...], BeforeValidator(_listed)] = Field(
        ("TOK",),
        min_length=1,
        max_length=8,
        description="Words in captions that are replaced by new tokens, such as TOK in: a photo of TOK.",
        validation_alias=AliasChoices("token_abstraction", "token_string"),
    )
    initializer_concept: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="Words whose embeddings the new tokens start from. Default: random embeddings.",
        validation_alias=AliasChoices("initializer_concept", "init_word", "initializer_token"),
    )
    use_ema: bool = Field(
        False, description="Export an exponential moving average (EMA) of the weights in place of the last weights."
    )
    ema_decay: float = Field(
        0.999,
        gt=0,
        lt=1,
        description="With use_ema: decay of the average after its warm-up. Closer to 1 averages over more steps.",
    )


def what_would_be_lost(old: AdapterFields, new: AdapterFields) -> list[tuple[str, str]]:
    """(field, what to say of it) for each way in which an adapter of `new` has no room for one of `old`."""
    lokr = AdapterType.LOKR in {old.adapter_type, new.adapter_type}
    factors = ("decompose_both", "decompose_factor", "rank") if lokr else ()
    changed = [name for name in ("adapter_type", *factors) if getattr(old, name) != getattr(new, name)]
    found = [(name, f"was {getattr(old, name)}, and has to stay so") for name in changed]
    if not lokr and new.rank < old.rank:
        found.append(("rank", f"was {old.rank}, and cannot be less"))
    if old.use_dora and not new.use_dora:
        found.append(("use_dora", "was true, and without it the learned lengths would be lost"))
    if old.train_text_encoder and not new.train_text_encoder:
        found.append(("train_text_encoder", "was true, and without it the text encoders' adapters would be lost"))
    if old.train_text_encoder_ti:
        said = "new tokens cannot be taken over into another job"
        said = said if new.train_text_encoder_ti else "without it the new tokens would be lost"
        found.append(("train_text_encoder_ti", f"was true, and {said}"))
    gone = ", ".join(sorted(set(old.target_modules) - set(new.target_modules)))
    if gone:
        found.append(("target_modules", f"lacks {gone}, whose adapters would be lost"))
    return found
