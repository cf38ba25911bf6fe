"""One picture from its parameters to a finished image: a row, and a further row for each further pass.

The passes are: the first one, from text or from a picture; the refiner's, which goes on with its latents; and a
second pass at high resolution. Each is as a call of diffusers' pipeline with `torch.Generator("cpu")` at the
picture's seed.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image

from giornata.diffusion.base.model_folder import MASKED_CHANNELS
from giornata.diffusion.base.weights_digest import tensors_digest
from giornata.diffusion.encode.prompt_embeds import PromptEmbeds
from giornata.diffusion.families import SDXL, SDXL_REFINER, Family
from giornata.diffusion.families.sdxl import AESTHETIC_SCORE, NEGATIVE_AESTHETIC_SCORE
from giornata.diffusion.files.row_lora import RowLora
from giornata.diffusion.sampling import initial_latents
from giornata.diffusion.sampling.decoded import control_of, mask_of, pixels_of, spared
from giornata.diffusion.sampling.row_schedule import RowSchedule
from giornata.diffusion.sampling.rows import DenoisingRow, RowControl, SizeCondition
from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.generation.picture import SafetyPolicy
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.generation.picture import HighResolution, PictureParams, Refiner
from giornata.protocol.node.pictures import PictureFlag
from giornata.workloads.generate.hub_reading import Told
from giornata.workloads.generate.lease_files import LeaseFiles
from giornata.workloads.generate.warm_models import WarmModels


class PictureDrawing:
    """A picture at work. `row` is denoised by the UNet of `model`; `go_on` begins the next pass.

    `flags` says what the safety checker found, once `image` was called. `weights` are the digests of models that have
    no sha256 of a file, by their place in the settings, once the picture is finished.

    Raises InvalidInput or WorkloadFailed while it is made, when the picture cannot be drawn.
    """

    def __init__(
        self,
        params: PictureParams,
        *,
        models: WarmModels,
        files: LeaseFiles,
        told: Told,
        safety: SafetyPolicy = SafetyPolicy.OFF,
    ) -> None:
        _refuse_unknown(params)
        self.params, self._models, self._files, self._told = params, models, files, told
        self.flags = PictureFlag.NOTHING
        self._safety = SafetyPolicy.BLOCK if params.safety_checker else safety
        if self._safety is not SafetyPolicy.OFF:
            models.safety.prepare(told)
        self.model = self._main = models.main(params, files, told)
        self.weights = dict(self.model.digests)
        self.loras = self._loras()
        self._text = self._encoded()
        self._later: deque[Callable[[torch.Tensor], DenoisingRow]] = deque()
        if params.refiner is not None:
            refiner = params.refiner
            self._later.append(lambda latents: self._refined(refiner, latents))
        if params.high_resolution is not None:
            second = params.high_resolution
            self._later.append(lambda latents: self._second(second, latents))
        self._size = (params.width, params.height)
        self._original: Image.Image | None = None
        if params.mask is None and self._main.base.unet.config.in_channels == MASKED_CHANNELS:
            raise WorkloadFailed(Reason.BAD_SPEC, "model: it was made to inpaint, and the picture has no mask")
        self.row = self._first()

    @property
    def is_done(self) -> bool:
        """Return True when the present pass has ended."""
        return self.row.is_done

    def go_on(self) -> bool:
        """Begin the next pass with the latents of the finished one. Returns False when the picture is finished."""
        if not self._later:
            return False
        self.row = self._later.popleft()(self.row.latents_1CHW)
        return True

    def evaluations_left(self) -> int:
        """Return the evaluations that are certainly left: those of the present pass."""
        return self.row.schedule.evaluations - self.row.schedule.evaluated

    def image(self) -> Image.Image | None:
        """Decode the finished picture; None for one that the safety checker blocks. Sets `flags`."""
        image = self._decoded()
        if self._safety is SafetyPolicy.OFF or not self._models.safety.is_unsafe(image):
            return image
        self.flags = PictureFlag.BLOCKED if self._safety is SafetyPolicy.BLOCK else PictureFlag.UNSAFE
        return None if self._safety is SafetyPolicy.BLOCK else image

    def _decoded(self) -> Image.Image:
        """Decode the latents. What a mask spares has the bytes of the picture that it began with."""
        drawn = self._main.decoder.picture(self.row.latents_1CHW)
        if self._original is None or self.params.mask is None:
            return drawn
        mask = mask_of(self._mask(self.params.mask, self._original), width=drawn.width, height=drawn.height)
        return spared(drawn, self._original, mask)

    # ---- what a row is made of

    def _first(self) -> DenoisingRow:
        params, base = self.params, self._main.base
        width, height = self._size
        generator = initial_latents.seeded(params.seed)
        if params.image is None:
            end = None if params.refiner is None else params.refiner.switch_at
            schedule = RowSchedule.whole(
                self._main.scheduler(params.scheduler), params.num_inference_steps, generator=generator, end=end
            )
            latents = initial_latents.from_text(base, schedule, generator, width=width, height=height)
            return self._row(schedule, latents)
        self._original = self._files.picture(params.image, where="image")
        pixels = pixels_of(self._original, width=width, height=height)
        schedule = RowSchedule.by_strength(
            self._main.scheduler(params.scheduler), params.num_inference_steps, params.strength, generator=generator
        )
        if params.mask is None:
            return self._row(schedule, initial_latents.from_pixels(base, schedule, generator, pixels))
        mask = mask_of(self._mask(params.mask, self._original), width=width, height=height)
        latents, kept = initial_latents.inpainting(
            base, schedule, generator, pixels, mask, from_noise=params.strength == 1
        )
        return self._row(schedule, latents, inpainting=kept)

    def _mask(self, sha256: str, original: Image.Image) -> Image.Image:
        """Return the mask. The server has compared its size with the picture's, but for those of a large order."""
        mask = self._files.picture(sha256, where="mask")
        if mask.size != original.size:
            (width, height), (wide, high) = mask.size, original.size
            message = f"the mask has {width}×{height} pixels, and its picture has {wide}×{high}"
            fault = Fault(where="mask", message=message, hint="give a mask of the picture's size")
            raise WorkloadFailed(Reason.BAD_DATA, str(fault), (fault,))
        return mask

    def _refined(self, refiner: Refiner, latents: torch.Tensor) -> DenoisingRow:
        """Return the row of the refiner, which goes on where the base stopped. LoRAs and textual inversions are the
        base's alone."""
        self.model = self._models.refiner(refiner.model, self._files, self._told)
        if "model" in self.model.digests:
            self.weights["refiner.model"] = self.model.digests["model"]
        schedule = RowSchedule.after_share(
            self.model.scheduler(self.params.scheduler),
            self.params.num_inference_steps,
            refiner.switch_at,
            generator=initial_latents.seeded(self.params.seed),
        )
        return DenoisingRow(
            text=self.model.encoder.encode(self.params.prompt, self.params.negative_prompt or None),
            schedule=schedule,
            latents_1CHW=latents,
            guidance_scale=self.params.guidance_scale,
            sizes=_sizes(*self._size, family=self.model.base.family),
        )

    def _second(self, second: HighResolution, latents: torch.Tensor) -> DenoisingRow:
        """Return the row of the second pass, which begins with the enlarged latents."""
        self.model, self._size = self._main, (second.width, second.height)
        generator = initial_latents.seeded(self.params.seed)
        steps = second.num_inference_steps or self.params.num_inference_steps
        scheduler = self._main.scheduler(self.params.scheduler)
        schedule = RowSchedule.by_strength(scheduler, steps, second.strength, generator=generator)
        larger = initial_latents.enlarged(self._main.base, latents, width=second.width, height=second.height)
        return self._row(schedule, initial_latents.from_latents(schedule, generator, larger))

    def _row(self, schedule: RowSchedule, latents: torch.Tensor, **more: Any) -> DenoisingRow:
        return DenoisingRow(
            text=self._text,
            schedule=schedule,
            latents_1CHW=latents,
            guidance_scale=self.params.guidance_scale,
            sizes=_sizes(*self._size),
            controls=self._controls(),
            loras=self._weights(),
            **more,
        )

    def _loras(self) -> tuple[RowLora, ...]:
        uses = enumerate(self.params.loras)
        return tuple(self._main.lora(use, self._files, where=f"loras.{place}") for place, use in uses)

    def _weights(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for lora, use in zip(self.loras, self.params.loras, strict=True):
            found[lora.sha256] = found.get(lora.sha256, 0.0) + use.weight
        return found

    def _encoded(self) -> PromptEmbeds:
        params = self.params
        words = [
            self._main.inversion(use, self._files, where=f"embeddings.{place}")
            for place, use in enumerate(params.embeddings)
        ]
        weights = [use.weight if use.text_encoder_weight is None else use.text_encoder_weight for use in params.loras]
        return self._main.encoder.encode(
            params.prompt,
            params.negative_prompt or None,
            clip_skip=params.clip_skip,
            embeddings=[*words, *(word for lora in self.loras for word in lora.words)],
            loras=[(lora.text, weight) for lora, weight in zip(self.loras, weights, strict=True)],
        )

    def _controls(self) -> tuple[RowControl, ...]:
        width, height = self._size
        found = []
        for place, use in enumerate(self.params.controlnets):
            where = f"controlnets.{place}"
            net = self._models.controlnet(use, self._files, where=where)
            self.weights |= {where: tensors_digest(net)} if use.sha256 is None else {}
            picture = self._models.control_pictures.of(use, self._files, self._told, where=where)
            pixels = control_of(picture, width=width, height=height).to(net.device, net.dtype)
            found.append(RowControl(model=net, image_13HW=pixels, weight=use.weight, start=use.start, end=use.end))
        return tuple(found)


def _sizes(width: int, height: int, *, family: Family = SDXL) -> SizeCondition:
    if family is SDXL_REFINER:
        place = (height, width, 0, 0)
        return SizeCondition(time_ids=(*place, AESTHETIC_SCORE), negative_time_ids=(*place, NEGATIVE_AESTHETIC_SCORE))
    ids = (height, width, 0, 0, height, width)
    return SizeCondition(time_ids=ids, negative_time_ids=ids)


def _refuse_unknown(params: PictureParams) -> None:
    """Raise WorkloadFailed for what this engine does not do: to leave it out would draw another picture."""
    if params.refiner is not None and params.image is not None:
        fault = Fault(where="refiner", message="a refiner goes on with pictures that are made of text")
        raise WorkloadFailed(Reason.BAD_SPEC, str(fault), (fault,))
