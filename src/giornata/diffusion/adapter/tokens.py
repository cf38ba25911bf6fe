"""New words for the text encoders: textual inversion (Gal et al., 2022, arXiv 2208.01618) beside an adapter, which
is called pivotal tuning. As diffusers' advanced script does it with `--train_text_encoder_ti`.

Shapes: N new tokens; E the width of a text encoder's token embeddings (768 and 1280 for SDXL, 768 for SD 1.5);
B captions, L tokens.

A caption says `TOK`; the text encoders hear `<s0><s1>`. The base is not touched: the new rows lie beside its
embedding matrix, not in it, and its tokenizers are copied before they learn the words.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.encode.extended_embedding import ExtendedEmbedding
from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.specs import TrainSpec
from giornata.protocol.training.train_fields import words_of

TOKENS = "tokens."
BUNDLE = "bundle_emb."
ENCODERS = ("clip_l", "clip_g")
"""The usual names of SDXL's two text encoders in files of embeddings; SD 1.5's has the first of them."""
PULL = 0.1
"""The share by which each step pulls the rows back to the base's spread: diffusers' and cog-sdxl's number."""


def unsaid(spec: TrainSpec, captions: Sequence[str]) -> list[Fault]:
    """Return a fault for every abstraction that no caption contains: its tokens would learn nothing."""
    return [
        Fault(
            where="spec.token_abstraction",
            message=f"no caption says {word}, so its tokens would learn nothing",
            hint=f"write it into instance_prompt or the captions, such as: a photo of {word}",
        )
        for word in words_of(spec)
        if not any(word in caption for caption in captions)
    ]


def learning_steps(spec: TrainSpec) -> int:
    """Return the count of optimizer steps in which the new tokens learn."""
    return max(1, int(spec.train_text_encoder_ti_frac * spec.max_train_steps))


def taught(base: BaseModel, spec: TrainSpec) -> BaseModel:
    """Return the base with tokenizers that know the new tokens; the base itself when there are none.

    Raises WorkloadFailed(BAD_SPEC) when the tokenizers know them already.
    """
    tokens = [token for each in words_of(spec).values() for token in each]
    if not tokens:
        return base
    tokenizers = copy.deepcopy(base.tokenizers)
    for tokenizer in tokenizers:
        if tokenizer.add_tokens(tokens) != len(tokens):
            message = f"the base model's tokenizer knows one of {', '.join(tokens)} already"
            raise _refused(Fault(where="spec.train_text_encoder_ti", message=message, hint="use another base"))
    return replace(base, tokenizers=tokenizers)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTokens:
    """The trainable rows, fp32: `tokens.clip_l` and `tokens.clip_g`, one for each text encoder, of N × E. As a
    context manager it gives the text encoders back as they were, whatever happened."""

    rows: dict[str, nn.Parameter]
    spreads: dict[str, torch.Tensor]
    encoders: tuple[Any, ...]
    hooks: tuple[Any, ...]

    @torch.no_grad()
    def settle(self) -> None:
        """Pull the rows, after an update, a little back to the spread of the base's embeddings."""
        for name, rows_NE in self.rows.items():
            rows_NE.mul_((self.spreads[name] / rows_NE.std()) ** PULL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self.hooks:
            hook.remove()
        for encoder in self.encoders:
            extended = encoder.get_input_embeddings()
            if isinstance(extended, ExtendedEmbedding):
                encoder.set_input_embeddings(extended.frozen)


def add_tokens(base: BaseModel, spec: TrainSpec) -> NewTokens:
    """Put rows for the new tokens beside the text encoders' embeddings. `base` is `taught`.

    The first values are a function of (seed, text encoder): normal, of the spread of the base's embeddings; or the
    rows of the words of `initializer_concept`. Raises WorkloadFailed(BAD_SPEC) when those do not fit.
    """
    words = words_of(spec)
    if not words:
        return NewTokens(rows={}, spreads={}, encoders=(), hooks=())
    names = ENCODERS[: len(base.text_encoders)]
    first_rows = [
        _first_rows(spec, name, tokenizer, encoder.get_input_embeddings().weight)
        for name, tokenizer, encoder in zip(names, base.tokenizers, base.text_encoders, strict=True)
    ]
    rows, spreads, hooks = {}, {}, []
    for name, tokenizer, encoder, first_NE in zip(
        names, base.tokenizers, base.text_encoders, first_rows, strict=True
    ):
        frozen = encoder.get_input_embeddings()
        rows[TOKENS + name] = nn.Parameter(first_NE.to(frozen.weight.device))
        spreads[TOKENS + name] = frozen.weight.detach().float().std()
        encoder.set_input_embeddings(ExtendedEmbedding(frozen, rows[TOKENS + name]))
        new_from = tokenizer.convert_tokens_to_ids(next(iter(words.values()))[0])
        hooks.append(encoder.register_forward_pre_hook(_renumbered(new_from), with_kwargs=True))
    return NewTokens(rows=rows, spreads=spreads, encoders=base.text_encoders, hooks=tuple(hooks))


def _renumbered(new_from: int) -> Any:
    """Make the ids of new tokens negative before the text encoder sees them. SDXL's second one pools at the highest
    id of a caption, which has to stay the end mark."""

    def hook(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        del module
        ids_BL, *rest = arguments
        return (torch.where(ids_BL >= new_from, new_from - 1 - ids_BL, ids_BL), *rest), named

    return hook


def _first_rows(spec: TrainSpec, name: str, tokenizer: Any, weight: torch.Tensor) -> torch.Tensor:
    each, total = spec.num_new_tokens_per_abstraction, sum(map(len, words_of(spec).values()))
    if spec.initializer_concept is None:
        if spec.seed is None:
            raise ValueError("a job's seed is set at submission")
        shape = (total, weight.shape[1])
        return normal(spec.seed, "token-init", name, shape=shape) * weight.detach().float().std().cpu()
    ids = tokenizer(spec.initializer_concept, add_special_tokens=False).input_ids
    if not 1 <= len(ids) <= each:
        message = f"has {len(ids)} tokens for text encoder {name}, and num_new_tokens_per_abstraction is {each}"
        hint = "choose a shorter one, or more new tokens"
        raise _refused(Fault(where="spec.initializer_concept", message=message, hint=hint))
    chosen = [ids[number % each % len(ids)] for number in range(total)]
    return weight.detach()[chosen].float().cpu()


def _refused(fault: Fault) -> WorkloadFailed:
    return WorkloadFailed(Reason.BAD_SPEC, str(fault), (fault,))


# ---- in files


def apart(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Split into (the adapter's weights, the new tokens' rows by `clip_l` and `clip_g`)."""
    adapter = {name: tensor for name, tensor in tensors.items() if not name.startswith(TOKENS)}
    rows = {name.removeprefix(TOKENS): tensor for name, tensor in tensors.items() if name.startswith(TOKENS)}
    return adapter, rows


def bundle(rows: Mapping[str, torch.Tensor], spec: TrainSpec) -> dict[str, torch.Tensor]:
    """Name the rows `bundle_emb.<abstraction>.clip_l` and `.clip_g`: so A1111 (its pull request 13568) and OneTrainer
    carry embeddings in a LoRA's file. There the abstraction itself is what a prompt says."""
    each = spec.num_new_tokens_per_abstraction
    return {
        f"{BUNDLE}{word}.{name}": rows_NE[place * each : (place + 1) * each].contiguous()
        for place, word in enumerate(words_of(spec))
        for name, rows_NE in rows.items()
    }
