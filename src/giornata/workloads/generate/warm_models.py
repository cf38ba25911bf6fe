"""The models that pictures are drawn with, warm between leases: one base, its LoRAs, a refiner, ControlNets.

Other bases that were drawn with may stay in host memory (`giornata.workloads.generate.host_models`).
"""

import copy
import gc
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from diffusers import ControlNetModel
from diffusers.loaders.single_file_utils import convert_controlnet_checkpoint

from giornata.diffusion.adapter.row_adapters import RowAdapters
from giornata.diffusion.base.hub import HubCache, HuggingFaceHub, arriving
from giornata.diffusion.base.models import BaseModel, ModelLocation, load_model
from giornata.diffusion.base.shared_weights import SharedWeights
from giornata.diffusion.base.swap import can_swap, copied_base, swap_base
from giornata.diffusion.base.weights_digest import base_sha256, tensors_digest
from giornata.diffusion.encode.prompt_embeds import PromptEncoder, TextualInversion
from giornata.diffusion.files.row_lora import RowLora, read_row_lora
from giornata.diffusion.files.textual_inversion import read_textual_inversion
from giornata.diffusion.sampling.attention import look_up_attention_once
from giornata.diffusion.sampling.decoded import let_large_be_tiled
from giornata.diffusion.sampling.picture_decoder import PictureDecoder
from giornata.diffusion.sampling.row_schedule import make_scheduler
from giornata.diffusion.tensor_file import read_tensors
from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.generation.expand import base_key_of
from giornata.protocol.generation.picture import ControlNetUse, EmbeddingUse, LoraUse, ModelUse, PictureParams
from giornata.protocol.generation.schedulers import all_schedulers, canonical_scheduler
from giornata.protocol.training.optimization import Compile
from giornata.workloads.generate.compiling import DrawingCompiler
from giornata.workloads.generate.control_pictures import ControlPictures
from giornata.workloads.generate.host_models import HostModels
from giornata.workloads.generate.hub_reading import Told
from giornata.workloads.generate.lease_files import LeaseFiles
from giornata.workloads.generate.safety_checks import SafetyChecks

Loader = Callable[..., BaseModel]

MAIN, REFINER = "main", "refiner"
LORAS_ON_DEVICE = 16
CONTROLNETS_KEPT = 4
LORAS_READ = 64
PLAIN = DrawingCompiler(choice=Compile.OFF)


class DrawingModel:
    """A base model with its prompt encoder, its decoder, its places for LoRAs and its compiled passes. More than
    `loras_on_device` LoRAs stay on the device only while one batch needs them. `digests` are those of `digests_of`.
    `close` comes before the model is released."""

    def __init__(
        self,
        base: BaseModel,
        *,
        digests: Mapping[str, str] | None = None,
        loras_on_device: int = LORAS_ON_DEVICE,
        compiler: DrawingCompiler = PLAIN,
    ) -> None:
        let_large_be_tiled(base.vae)
        look_up_attention_once(base.unet)
        self.base, self.digests = base, digests or {}
        self.kernels = compiler.passes_of(base.unet, base.device)
        self.decoder = PictureDecoder(base)
        self.encoder = PromptEncoder(base)
        self.adapters = RowAdapters(base, capacity=loras_on_device, steady=self.kernels is not None)
        self._loras_on_device = loras_on_device
        self._loras: OrderedDict[str, RowLora] = OrderedDict()
        self._schedulers: dict[str, Any] = {}

    def become(self, base: BaseModel, digests: Mapping[str, str]) -> None:
        """Take over the weights of another base in place; LoRAs and compiled kernels stay."""
        self.base, self.digests = swap_base(self.base, base), digests
        let_large_be_tiled(self.base.vae)
        self.decoder = PictureDecoder(self.base)
        self.encoder = PromptEncoder(self.base)
        self._schedulers.clear()

    def close(self) -> None:
        """Let torch forget the kernels of the model."""
        if self.kernels is not None:
            self.kernels.close()

    def scheduler(self, name: str) -> Any:
        """Return a scheduler for one row, by any spelling of its name. It is a copy of one that was made before:
        diffusers inspects its own classes for each one that it makes."""
        canonical = canonical_scheduler(name)
        if canonical not in self._schedulers:
            named = all_schedulers()[canonical]
            config = self.base.noise_scheduler.config
            self._schedulers[canonical] = make_scheduler(config, named.class_name, named.settings)
        return copy.deepcopy(self._schedulers[canonical])

    def lora(self, use: LoraUse, files: LeaseFiles, *, where: str) -> RowLora:
        """Read a LoRA, or find it among those that were read. Raises InvalidInput or WorkloadFailed."""
        path = files.file(use, where=where)
        key = use.sha256 or str(path)
        if key not in self._loras:
            self._loras[key] = read_row_lora(path, self.base, where=where)
            if len(self._loras) > LORAS_READ:
                self._loras.popitem(last=False)
        self._loras.move_to_end(key)
        return self._loras[key]

    def inversion(self, use: EmbeddingUse, files: LeaseFiles, *, where: str) -> TextualInversion:
        """Read a textual inversion. Raises InvalidInput or WorkloadFailed."""
        return read_textual_inversion(files.file(use, where=where), use.token, self.base, where=where)

    def show(self, loras: Sequence[RowLora]) -> None:
        """Make sure that these LoRAs, those of all rows of the next pass, are on the device."""
        wanted = {lora.sha256 for lora in loras}
        self.adapters.capacity = max(self._loras_on_device, len(wanted))
        for lora in [lora for lora in loras if not self.adapters.use(lora.sha256)]:
            self.adapters.load(lora.sha256, lora.unet, keep=wanted)


class WarmModels:
    """Loads what a lease draws with, and keeps the last of it. `load` has the signature of `load_model`.

    `control_pictures` and `safety` are made for the same device unless they are given. The models share memory with
    the bases of other workloads that have the same `shared_weights`. Bases in host memory have `host_model_bytes`
    together at most. `compiler` decides which passes are compiled.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        load: Loader = load_model,
        model_cache_bytes: int | None = None,
        control_pictures: ControlPictures | None = None,
        safety: SafetyChecks | None = None,
        shared_weights: SharedWeights | None = None,
        host_model_bytes: int = 0,
        compiler: DrawingCompiler = PLAIN,
    ) -> None:
        self._compiler = compiler
        self._shared_weights = shared_weights or SharedWeights()
        self._host = HostModels(host_model_bytes)
        self.device, self._load, self._model_cache_bytes = device, load, model_cache_bytes
        self.control_pictures = control_pictures or ControlPictures(device, model_cache_bytes=model_cache_bytes)
        self.safety = safety or SafetyChecks(device, model_cache_bytes=model_cache_bytes)
        self._dtype = torch.float16 if device.type == "cuda" else torch.float32
        self._models: dict[str, DrawingModel] = {}
        self._controlnets: OrderedDict[str, Any] = OrderedDict()

    def keys(self) -> tuple[str, ...]:
        """Return the base key of the warm base."""
        return (self._models[MAIN].base.key,) if MAIN in self._models else ()

    def files_in_host_memory(self) -> tuple[str, ...]:
        """Return the sha256 of each file whose base is in host memory."""
        return self._host.files()

    def main(self, params: PictureParams, files: LeaseFiles, told: Told) -> DrawingModel:
        """Return the base of this picture, warm. The weights of another base are written over where its shapes
        agree; otherwise it is released first, because two might not fit."""
        key = base_key_of(params)
        if key in self.keys():
            return self._models[MAIN]
        source = ModelLocation(
            name=params.model.name,
            key=key,
            revision=params.revision,
            variant=params.variant,
            vae=None if params.vae is None else params.vae.name,
            path=files.weights(params.model, where="model"),
            vae_path=None if params.vae is None else files.weights(params.vae, where="vae"),
            field="model",
            vae_field="vae",
            inpainting=True,
        )
        self._release(REFINER)
        self._controlnets.clear()
        return self._replaced(MAIN, source, told, uses=(params.model, params.vae))

    def refiner(self, use: ModelUse, files: LeaseFiles, told: Told) -> DrawingModel:
        """Return the model that goes on with pictures of the warm base."""
        key = use.sha256 or use.name
        if REFINER in self._models and self._models[REFINER].base.key == key:
            return self._models[REFINER]
        path = files.weights(use, where="refiner.model")
        source = ModelLocation(name=use.name, key=key, path=path, field="refiner.model", refiner=True)
        return self._replaced(REFINER, source, told, uses=(use,))

    def controlnet(self, use: ControlNetUse, files: LeaseFiles, *, where: str) -> Any:
        """Return a ControlNet for the warm base. Raises WorkloadFailed for one of another family, and KeyError
        without a base."""
        key = use.sha256 or use.name
        if key not in self._controlnets:
            place = files.weights(use, where=where) or Path(use.name).expanduser()
            self._controlnets[key] = _controlnet(place, self._models[MAIN].base, where=where)
            if len(self._controlnets) > CONTROLNETS_KEPT:
                self._controlnets.popitem(last=False)
        self._controlnets.move_to_end(key)
        return self._controlnets[key]

    def drop(self) -> None:
        """Release all models and their memory."""
        for role in (MAIN, REFINER):
            self._release(role)
        self._host.drop()
        self._controlnets.clear()
        self.control_pictures.drop()
        self.safety.drop()
        self._collect()

    def _replaced(
        self, role: str, source: ModelLocation, told: Told, *, uses: Sequence[ModelUse | None]
    ) -> DrawingModel:
        """Return the model of `source`, in the modules of the one before if their shapes agree and no other model
        shares its weights. `uses` name its files."""
        other, is_kept = self._on_the_cpu(role, source, told, uses)
        digests = digests_of(other, *uses)
        warm = self._models.get(role)
        if warm is not None and can_swap(warm.base, other) and not self._shared_weights.shares(role):
            warm.become(other, digests)
        else:
            del warm
            self._release(role)
            self._collect()
            base = (copied_base if is_kept else _moved)(other, self.device)
            self._models[role] = DrawingModel(base, digests=digests, compiler=self._compiler)
        self._shared_weights.join(role, self._models[role].base)
        return self._models[role]

    def _on_the_cpu(
        self, role: str, source: ModelLocation, told: Told, uses: Sequence[ModelUse | None]
    ) -> tuple[BaseModel, bool]:
        """Return the base from host memory, or else from its files, and whether it stays in host memory."""
        key = (role, source.key)
        if (held := self._host.get(key)) is not None:
            return held, True
        loaded = self._loaded(source, told)
        sha256s = frozenset(use.sha256 for use in uses if use is not None and use.sha256 is not None)
        return loaded, self._host.keep(key, loaded, sha256s)

    def _loaded(self, source: ModelLocation, told: Told) -> BaseModel:
        """Load onto the CPU: weights of two models are never on the device together."""
        cache = HubCache(bound_bytes=self._model_cache_bytes)
        with closing(HuggingFaceHub(None, cache)) as hub, arriving(cache.directory, told):
            return self._load(source, device=torch.device("cpu"), dtype=self._dtype, hub=hub)

    def _release(self, role: str) -> None:
        if (model := self._models.pop(role, None)) is not None:
            model.close()
        self._shared_weights.leave(role)

    def _collect(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def digests_of(base: BaseModel, model: ModelUse | None, vae: ModelUse | None = None) -> dict[str, str]:
    """Return the digest of the weights of what is named without the sha256 of a file: `model`, with its VAE, and
    `vae`. The base is as it was loaded. Each module is hashed once while it lives."""
    found = {}
    if model is not None and model.sha256 is None:
        found["model"] = base_sha256(base)
    if vae is not None and vae.sha256 is None:
        found["vae"] = tensors_digest(base.vae)
    return found


def _moved(base: BaseModel, device: torch.device) -> BaseModel:
    for module in (base.unet, base.vae, *base.text_encoders):
        module.to(device)
    return replace(base, device=device)


def _controlnet(place: Path, base: BaseModel, *, where: str) -> Any:
    """Read a ControlNet: a folder in diffusers layout, or one file in diffusers' or the authors' layout."""
    try:
        if place.is_dir():
            options = {"torch_dtype": base.dtype, "use_safetensors": True, "local_files_only": True}
            net = ControlNetModel.from_pretrained(place, **options)
        else:
            net = ControlNetModel.from_unet(base.unet, load_weights_from_unet=False)
            net.load_state_dict(_diffusers_names(read_tensors(place)[1], net.config))
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        said = str(error).splitlines()[0]
        fault = Fault(
            where=where,
            message=f"is no ControlNet for a base of {base.family.title}: {said}",
            hint="take one that was trained for this kind of base model",
        )
        raise WorkloadFailed(Reason.BAD_SPEC, str(fault), (fault,)) from error
    return net.to(base.device, base.dtype).requires_grad_(False).eval()


def _diffusers_names(tensors: dict[str, torch.Tensor], config: Any) -> dict[str, torch.Tensor]:
    if any(name.startswith(("control_model.", "input_hint_block.")) for name in tensors):
        converted: dict[str, torch.Tensor] = convert_controlnet_checkpoint(tensors, config)
        return converted
    return tensors
