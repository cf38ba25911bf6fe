"""Denoise rows together: one forward pass of the UNet for all rows, each at its own timestep.

Rows may differ in scheduler, timestep, guidance, prompt, length of the prompt, LoRAs and ControlNets. They have one
UNet and one size. The passes are those of diffusers' pipelines, bit for bit for a row that is alone.

Shapes: R rows; G of them guided; B = R + G rows of a pass: the negative halves of guided rows, their positive halves,
then the other rows; L tokens; D, P as in `rows`; C, H, W of the latents. A compiled pass is filled up to a width by
copies of its last row, so that B is a power of two; their answers are dropped.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.nn import functional

from giornata.diffusion.adapter.row_adapters import RowAdapters
from giornata.diffusion.encode.captions import moved
from giornata.diffusion.sampling.attention import TextProjections, projects_text_once
from giornata.diffusion.sampling.compiled_passes import NO_LORA, CompiledPasses, PassKind, width_of
from giornata.diffusion.sampling.controls import PassInputs, Residuals, control_residuals
from giornata.diffusion.sampling.rows import DenoisingRow


@dataclass(frozen=True, slots=True, kw_only=True)
class PassConditions:
    """The inputs of a pass besides latents and timesteps. They stay the same while the same rows go on together.

    `mask_BL` is None where all prompts are equally long. `order` holds the row of each of the B rows of the pass, the
    last `filled` of which are copies.
    """

    order: tuple[int, ...]
    guided: int
    filled: int
    hidden_BLD: torch.Tensor
    mask_BL: torch.Tensor | None
    added: dict[str, torch.Tensor] | None
    guidance_G111: torch.Tensor
    timestep_condition_BT: torch.Tensor | None
    text_projections: TextProjections = field(default_factory=dict)


class Denoiser:
    """Denoises rows with one UNet. `loras` are the LoRAs of the UNet, if it has any, and `kernels` its compiled
    passes.

    `compiler` names the compiler after a pass by its kernels; None after a plain one.
    """

    def __init__(self, unet: Any, *, loras: RowAdapters | None = None, kernels: CompiledPasses | None = None) -> None:
        self._unet, self._loras, self._kernels = unet, loras, kernels
        self._projects_text_once = projects_text_once(unet)
        self._of_rows: tuple[tuple[DenoisingRow, ...], int | None] = (), None
        self._conditions: PassConditions | None = None
        self.compiler: str | None = None

    def step(self, rows: Sequence[DenoisingRow]) -> None:
        """Move all rows by one evaluation."""
        for row, noise_1CHW in zip(rows, self.predict(rows), strict=True):
            row.advance(noise_1CHW)

    @torch.no_grad()
    def predict(self, rows: Sequence[DenoisingRow]) -> list[torch.Tensor]:
        """Return each row's prediction, 1CHW, after guidance. No row changes, so a failed call can be repeated."""
        kind = self._kind(rows)
        conditions = self._conditions_of(tuple(rows), None if kind is None else kind.width)
        given = _inputs(rows, conditions)
        residuals = _residuals(rows, conditions, given)
        projections = self._of_attention(conditions) if kind is None else None

        def call() -> torch.Tensor:
            answer: torch.Tensor = self._unet(
                given.sample_BCHW,
                given.timesteps_B,
                encoder_hidden_states=given.hidden_BLD,
                encoder_attention_mask=given.mask_BL,
                timestep_cond=conditions.timestep_condition_BT,
                added_cond_kwargs=given.added,
                cross_attention_kwargs=projections,
                **({} if residuals is None else residuals.of_unet()),
                return_dict=False,
            )[0]
            return answer

        with self._chosen_loras(rows, conditions):
            answer_BCHW = self._answer(kind, rows, call)
        return _guided(answer_BCHW, conditions, len(rows))

    def forget(self) -> None:
        """Release the tensors that are kept for the next step."""
        self._of_rows, self._conditions = ((), None), None

    def _kind(self, rows: Sequence[DenoisingRow]) -> PassKind | None:
        """Return the kind of a pass that runs by kernels; None for any other."""
        if self._kernels is None:
            return None
        guided = [row for row in rows if is_guided(self._unet, row)]
        tokens = {row.text.prompt_LD.shape[0] for row in rows} | {row.text.negative_LD.shape[0] for row in guided}
        kind = PassKind(
            latents=rows[0].latents_1CHW.shape[1:],
            width=width_of(len(rows) + len(guided)),
            tokens=max(tokens),
            masked=len(tokens) > 1,
        )
        return kind if self._kernels.takes(kind, alone=len(rows) == 1) else None

    def _answer(
        self, kind: PassKind | None, rows: Sequence[DenoisingRow], call: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        self.compiler = None
        if self._kernels is None:
            return call()
        if kind is None:
            return self._kernels.plain(call)
        has_loras = self._loras is not None and any(weight for row in rows for weight in row.loras.values())
        layout = self._loras.layout if self._loras is not None and has_loras else NO_LORA
        answer, by_kernels = self._kernels.run(kind, layout, call)
        self.compiler = self._kernels.compiler if by_kernels else None
        return answer

    def _conditions_of(self, rows: tuple[DenoisingRow, ...], width: int | None) -> PassConditions:
        if self._conditions is None or (rows, width) != self._of_rows:
            self._conditions, self._of_rows = _conditions(self._unet, rows, width), (rows, width)
        return self._conditions

    def _of_attention(self, conditions: PassConditions) -> dict[str, Any] | None:
        return {"text_projections": conditions.text_projections} if self._projects_text_once else None

    def _chosen_loras(
        self, rows: Sequence[DenoisingRow], conditions: PassConditions
    ) -> AbstractContextManager[object]:
        if self._loras is None:
            return nullcontext()
        own = conditions.order[: len(conditions.order) - conditions.filled]
        return self._loras.rows([*(rows[place].loras for place in own), *({} for _ in range(conditions.filled))])


def _inputs(rows: Sequence[DenoisingRow], conditions: PassConditions) -> PassInputs:
    inputs = [row.model_input() for row in rows]
    times = [float(row.schedule.timestep) for row in rows]
    return PassInputs(
        sample_BCHW=torch.cat([inputs[place] for place in conditions.order]),
        timesteps_B=moved(torch.tensor([times[place] for place in conditions.order]), inputs[0].device),
        hidden_BLD=conditions.hidden_BLD,
        mask_BL=conditions.mask_BL,
        added=conditions.added,
    )


def _residuals(rows: Sequence[DenoisingRow], conditions: PassConditions, given: PassInputs) -> Residuals | None:
    own = conditions.order[: len(conditions.order) - conditions.filled]
    acting = [*(rows[place].active_controls() for place in own), *(() for _ in range(conditions.filled))]
    if not any(acting):
        return None
    latent_channels = rows[0].latents_1CHW.shape[1]
    return control_residuals(acting, replace(given, sample_BCHW=given.sample_BCHW[:, :latent_channels]))


def is_guided(unet: Any, row: DenoisingRow) -> bool:
    """Return True for a row that needs a negative half. A distilled UNet takes the guidance scale as an input."""
    return row.guidance_scale > 1 and unet.config.time_cond_proj_dim is None


def _conditions(unet: Any, rows: Sequence[DenoisingRow], width: int | None) -> PassConditions:
    guided = [place for place, row in enumerate(rows) if is_guided(unet, row)]
    plain = [place for place, row in enumerate(rows) if not is_guided(unet, row)]
    filled = 0 if width is None else width - len(rows) - len(guided)
    plain += [(*guided, *plain)[-1]] * filled
    negative, positive = [rows[place] for place in guided], [rows[place] for place in (*guided, *plain)]
    hidden_BLD, mask_BL = _padded(
        [*(row.text.negative_LD for row in negative), *(row.text.prompt_LD for row in positive)]
    )
    pooled = [*(row.text.negative_pooled_P for row in negative), *(row.text.pooled_P for row in positive)]
    ids = [*(row.sizes.negative_time_ids for row in negative), *(row.sizes.time_ids for row in positive)]
    scales = moved(torch.tensor([row.guidance_scale for row in negative]), hidden_BLD.device)
    return PassConditions(
        order=(*guided, *guided, *plain),
        guided=len(guided),
        filled=filled,
        hidden_BLD=hidden_BLD,
        mask_BL=mask_BL,
        added=_added(pooled, ids),
        guidance_G111=scales.view(-1, 1, 1, 1),
        timestep_condition_BT=_timestep_condition(unet, positive, hidden_BLD),
    )


def _added(pooled: Sequence[torch.Tensor | None], ids: Sequence[tuple[float, ...]]) -> dict[str, torch.Tensor] | None:
    known = [each for each in pooled if each is not None]
    if not known:
        return None
    text_BP = torch.stack(known)
    return {"text_embeds": text_BP, "time_ids": moved(torch.tensor(ids, dtype=text_BP.dtype), text_BP.device)}


def _padded(prompts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Stack prompts of any lengths. Shorter ones are filled up with zeros, which the mask hides."""
    longest = max(each_LD.shape[0] for each_LD in prompts)
    if all(each_LD.shape[0] == longest for each_LD in prompts):
        return torch.stack(list(prompts)), None
    filled = [functional.pad(each_LD, (0, 0, 0, longest - each_LD.shape[0])) for each_LD in prompts]
    mask_BL = torch.zeros(len(prompts), longest, device=prompts[0].device)
    for place, each_LD in enumerate(prompts):
        mask_BL[place, : each_LD.shape[0]] = 1
    return torch.stack(filled), mask_BL


def _timestep_condition(unet: Any, rows: Sequence[DenoisingRow], hidden_BLD: torch.Tensor) -> torch.Tensor | None:
    """Return the embedding of the guidance scale for a UNet that was distilled with it; None for any other.

    The formula is that of diffusers' `get_guidance_scale_embedding`: sines and cosines of 1000 times the scale.
    """
    width = unet.config.time_cond_proj_dim
    if width is None:
        return None
    scales_B = torch.tensor([row.guidance_scale - 1 for row in rows]) * 1000.0
    half = width // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float32) * -(torch.log(torch.tensor(10000.0)) / (half - 1)))
    angles = scales_B[:, None] * rates[None, :]
    embedding = functional.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, width % 2))
    return embedding.to(hidden_BLD)


def _guided(answer_BCHW: torch.Tensor, conditions: PassConditions, rows: int) -> list[torch.Tensor]:
    """Return the prediction of each row in the order of the rows."""
    guided, order = conditions.guided, conditions.order
    negative_GCHW, positive_GCHW = answer_BCHW[:guided], answer_BCHW[guided : 2 * guided]
    push_GCHW = conditions.guidance_G111 * (positive_GCHW - negative_GCHW)
    together_GCHW = negative_GCHW + push_GCHW.to(answer_BCHW.dtype)
    found = dict(zip(order[:guided], together_GCHW.split(1), strict=True)) if guided else {}
    alone = slice(2 * guided, guided + rows)
    found |= dict(zip(order[alone], answer_BCHW[alone].split(1), strict=True)) if rows > guided else {}
    return [found[place] for place in range(rows)]
