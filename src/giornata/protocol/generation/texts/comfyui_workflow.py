"""A picture's settings as a workflow of ComfyUI, as near as its plain nodes come.

Model files have their names without folders. Weights are written out as `(text:1.2)`. ComfyUI has no BREAK: sections
follow one another. Control pictures have to lie beside under their sha256.
"""

from dataclasses import dataclass

from giornata.domain.errors import InvalidInput
from giornata.domain.generation.prompt_grammar import parse
from giornata.protocol.generation.picture import EmbeddingUse, ModelUse, PictureParams
from giornata.protocol.generation.schedulers import DEFAULT, all_schedulers
from giornata.protocol.generation.texts.a1111_text import stem
from giornata.protocol.generation.texts.comfyui_nodes import ComfyWorkflow, NodeOutput

LAST_STEP = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conditioned:
    """A model with what it needs for a step."""

    model: NodeOutput
    vae: NodeOutput
    positive: NodeOutput
    negative: NodeOutput


def comfyui_workflow(params: PictureParams) -> ComfyWorkflow:
    """Return the workflow that draws a picture with these settings."""
    flow = ComfyWorkflow()
    base = _with_controls(flow, params, _conditioned(flow, params, params.model, own=True))
    latents = _latents(flow, params, base.vae)
    if params.refiner is None:
        denoise = 1.0 if params.image is None else params.strength
        latents = _sampled(flow, params, base, latents, steps=params.num_inference_steps, denoise=denoise)
    else:
        latents = _handed_over(flow, params, base, latents)
    if (second := params.high_resolution) is not None:
        size = {"width": second.width, "height": second.height}
        larger = flow.add("LatentUpscale", samples=latents, upscale_method="bilinear", crop="disabled", **size)
        steps = second.num_inference_steps or params.num_inference_steps
        latents = _sampled(flow, params, base, larger, steps=steps, denoise=second.strength)
    image = flow.add("VAEDecode", samples=latents, vae=base.vae)
    flow.add("SaveImage", images=image, filename_prefix="giornata")
    return flow


def _conditioned(flow: ComfyWorkflow, params: PictureParams, model: ModelUse, *, own: bool) -> _Conditioned:
    """Load a model and encode the prompts. LoRAs and the other VAE belong to the picture's own base."""
    loader = flow.add("CheckpointLoaderSimple", ckpt_name=file_name(model))
    unet, clip, vae = loader, NodeOutput(loader.node, 1), NodeOutput(loader.node, 2)
    if own and params.vae is not None:
        vae = flow.add("VAELoader", vae_name=file_name(params.vae))
    for lora in params.loras if own else ():
        text = lora.weight if lora.text_encoder_weight is None else lora.text_encoder_weight
        strengths = {"strength_model": lora.weight, "strength_clip": text}
        unet = flow.add("LoraLoader", model=unet, clip=clip, lora_name=file_name(lora), **strengths)
        clip = NodeOutput(unet.node, 1)
    if params.clip_skip is not None:
        clip = flow.add("CLIPSetLastLayer", clip=clip, stop_at_clip_layer=-params.clip_skip - 1)
    texts = [comfyui_prompt(each, params.embeddings) for each in (params.prompt, params.negative_prompt)]
    positive, negative = (flow.add("CLIPTextEncode", clip=clip, text=text) for text in texts)
    return _Conditioned(model=unet, vae=vae, positive=positive, negative=negative)


def _with_controls(flow: ComfyWorkflow, params: PictureParams, base: _Conditioned) -> _Conditioned:
    positive, negative = base.positive, base.negative
    for control in params.controlnets:
        positive = flow.add(
            "ControlNetApplyAdvanced",
            control_net=flow.add("ControlNetLoader", control_net_name=file_name(control)),
            image=flow.add("LoadImage", image=f"{control.image}.png"),
            positive=positive,
            negative=negative,
            strength=control.weight,
            start_percent=control.start,
            end_percent=control.end,
        )
        negative = NodeOutput(positive.node, 1)
    return _Conditioned(model=base.model, vae=base.vae, positive=positive, negative=negative)


def _latents(flow: ComfyWorkflow, params: PictureParams, vae: NodeOutput) -> NodeOutput:
    if params.image is None:
        return flow.add("EmptyLatentImage", width=params.width, height=params.height, batch_size=1)
    latents = flow.add("VAEEncode", pixels=flow.add("LoadImage", image=f"{params.image}.png"), vae=vae)
    if params.mask is None:
        return latents
    mask = flow.add("LoadImageMask", image=f"{params.mask}.png", channel="red")
    return flow.add("SetLatentNoiseMask", samples=latents, mask=mask)


def _sampled(
    flow: ComfyWorkflow, params: PictureParams, base: _Conditioned, latents: NodeOutput, *, steps: int, denoise: float
) -> NodeOutput:
    sampler, schedule = _sampler(params.scheduler)
    return flow.add(
        "KSampler",
        model=base.model,
        positive=base.positive,
        negative=base.negative,
        latent_image=latents,
        seed=params.seed,
        steps=steps,
        cfg=params.guidance_scale,
        sampler_name=sampler,
        scheduler=schedule,
        denoise=denoise,
    )


def _handed_over(flow: ComfyWorkflow, params: PictureParams, base: _Conditioned, latents: NodeOutput) -> NodeOutput:
    """Denoise with the base, then from the same step on with the refiner."""
    assert params.refiner is not None  # noqa: S101 - the only caller has looked
    switch = round(params.num_inference_steps * params.refiner.switch_at)
    refiner = _conditioned(flow, params, params.refiner.model, own=False)
    sampler, schedule = _sampler(params.scheduler)
    for model, first, last in ((base, 0, switch), (refiner, switch, LAST_STEP)):
        latents = flow.add(
            "KSamplerAdvanced",
            model=model.model,
            positive=model.positive,
            negative=model.negative,
            latent_image=latents,
            add_noise="enable" if first == 0 else "disable",
            noise_seed=params.seed,
            steps=params.num_inference_steps,
            cfg=params.guidance_scale,
            sampler_name=sampler,
            scheduler=schedule,
            start_at_step=first,
            end_at_step=last,
            return_with_leftover_noise="enable" if first == 0 else "disable",
        )
    return latents


def _sampler(name: str) -> tuple[str, str]:
    sampler, schedule = all_schedulers()[name].comfyui
    return (sampler, schedule) if sampler else all_schedulers()[DEFAULT].comfyui


def file_name(model: ModelUse) -> str:
    """Return the name that the model's file is likely to have in ComfyUI's folder."""
    return f"{stem(model)}.safetensors"


def comfyui_prompt(prompt: str, embeddings: tuple[EmbeddingUse, ...]) -> str:
    """Return a prompt with its weights as ComfyUI writes them."""
    for each in embeddings:
        prompt = prompt.replace(each.token, f"embedding\\:{stem(each)}")
    try:
        sections = parse(prompt)
    except InvalidInput:  # no spec is taken with such a prompt
        return prompt
    texts = []
    for section in sections:
        parts = []
        for segment in section:
            text = segment.text.replace("(", "\\(").replace(")", "\\)")
            parts.append(text if segment.weight == 1 else f"({text}:{segment.weight:.4g})")
        texts.append("".join(parts))
    return " ".join(texts)
