"""Each row of a batch has the LoRAs that diffusers would load for it alone, and rows do not touch each other."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.exc import RecompileError
from torch.utils._python_dispatch import TorchDispatchMode

from giornata.diffusion.adapter.lora import add_adapters
from giornata.diffusion.adapter.row_adapters import RowAdapters
from giornata.diffusion.base.low_rank import LowRank
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.base.weights_digest import described
from giornata.diffusion.encode.prompt_embeds import PromptEncoder
from giornata.diffusion.files.formats import Format, write_lora
from giornata.diffusion.files.lora_facts import facts_of
from giornata.diffusion.files.row_lora import RowLora, read_row_lora
from giornata.protocol.specs import TrainSpec

ATTENTION = ("to_k", "to_q", "to_v", "to_out.0")
CONVOLUTIONS = ("conv1", "conv2", "conv_shortcut", "conv_in", "conv_out", "conv", "time_emb_proj")
WIDE = (*ATTENTION, "ff.net.0.proj", "ff.net.2", "proj_in", "proj_out", *CONVOLUTIONS)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
"""The tiny UNet enlarges rounding: where much is adapted, both sides are computed in float64."""


@pytest.fixture(scope="module", params=["SDXL", "Stable Diffusion 1.5"])
def base(request: pytest.FixtureRequest) -> BaseModel:
    return request.getfixturevalue("tiny_base" if request.param == "SDXL" else "tiny_sd15_base")


def spec_of(**fields: Any) -> TrainSpec:
    defaults = {"model": "owner/name", "dataset": "ds_1", "seed": 5, "rank": 4, "resolution": 64}
    return TrainSpec.model_validate({**defaults, "instance_prompt": "a photo of sks toy", **fields})


def lora_file(
    base: BaseModel, path: Path, *, seed: int = 0, kind: Format = "kohya", size: float = 0.1, **fields: Any
) -> Path:
    """A file with a LoRA as after a training: no zeros left."""
    spec = spec_of(**{"target_modules": ATTENTION, **fields})
    draw = torch.Generator().manual_seed(seed)
    with add_adapters(base, spec) as adapters:
        tensors = {
            name: value + size * torch.randn(value.shape, generator=draw)
            for name, value in adapters.tensors().items()
        }
    facts = facts_of(spec, step=7, layers_per_block=1, family=base.family)
    return write_lora(kind, path / f"{seed}-{kind}.safetensors", tensors, facts, dtype="float32")


class RowsPass:
    """One forward pass of the UNet on a batch of fixed inputs, of which each row has its own."""

    def __init__(self, base: BaseModel, rows: int) -> None:
        draw = torch.Generator().manual_seed(3)
        width = base.unet.config.cross_attention_dim
        self.latents_BCHW = torch.randn((rows, 4, 8, 8), generator=draw)
        self.text_BLD = torch.randn((rows, 77, width), generator=draw)
        self.more = {"text_embeds": torch.randn((rows, 32), generator=draw), "time_ids": torch.full((rows, 6), 64.0)}

    def of(self, unet: Any, rows: slice = slice(None)) -> torch.Tensor:
        latents_BCHW = self.latents_BCHW[rows].to(unet.dtype)
        steps_B = torch.full((len(latents_BCHW),), 300)
        more = {name: tensor[rows].to(unet.dtype) for name, tensor in self.more.items()}
        with torch.no_grad():
            return unet(latents_BCHW, steps_B, self.text_BLD[rows].to(unet.dtype), added_cond_kwargs=more).sample


def loaded(base: BaseModel, loras: Mapping[str, RowLora], **options: Any) -> RowAdapters:
    adapters = RowAdapters(base, **{"rank": 4, **options})
    for key, lora in loras.items():
        adapters.load(key, lora.unet)
    return adapters


@pytest.fixture(scope="module")
def three(base: BaseModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RowLora]:
    folder = tmp_path_factory.mktemp("loras")
    ranks = {"a": 2, "b": 4, "c": 3}
    return {
        key: read_row_lora(lora_file(base, folder, seed=number, rank=rank), base)
        for number, (key, rank) in enumerate(ranks.items())
    }


# ---- diffusers' numbers ------------------------------------------------------------------------------------------


def in_double(base: BaseModel) -> BaseModel:
    return replace(base, unet=copy.deepcopy(base.unet).double(), dtype=torch.float64)


def near(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return torch.allclose(ours, theirs, atol=TOLERANCE[ours.dtype], rtol=TOLERANCE[ours.dtype])


def folder_of(base: BaseModel, request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue("tiny_folder" if base.family.pooled else "tiny_sd15_folder")


@pytest.mark.parametrize(("kind", "targets"), [("kohya", ATTENTION), ("diffusers", WIDE)])
def test_row_with_one_lora_equals_diffusers(
    base: BaseModel, request: pytest.FixtureRequest, tmp_path: Path, kind: Format, targets: tuple[str, ...]
) -> None:
    base = in_double(base) if targets == WIDE else base
    size = 0.1 if targets == WIDE else 0.02
    path = lora_file(base, tmp_path, kind=kind, target_modules=targets, alpha=2.5, size=size)
    pipeline = base.family.load_pipeline(folder_of(base, request), dtype=torch.float32)
    pipeline.load_lora_weights(str(path), adapter_name="one")
    pipeline.set_adapters(["one"], [0.7])
    once = RowsPass(base, 1)
    bare = once.of(base.unet)
    with loaded(base, {"one": read_row_lora(path, base)}) as adapters, adapters.rows([{"one": 0.7}]):
        ours = once.of(base.unet)
    assert near(ours, once.of(pipeline.unet.to(base.dtype)))
    assert not torch.allclose(ours, bare, atol=100 * TOLERANCE[ours.dtype])


def test_row_with_two_loras_equals_diffusers(base: BaseModel, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    base = in_double(base)
    paths = {
        key: lora_file(base, tmp_path, seed=seed, rank=rank, target_modules=targets)
        for seed, (key, rank, targets) in enumerate([("a", 2, WIDE), ("b", 5, ATTENTION)])
    }
    pipeline = base.family.load_pipeline(folder_of(base, request), dtype=torch.float32)
    for key, path in paths.items():
        pipeline.load_lora_weights(str(path), adapter_name=key)
    pipeline.set_adapters(["a", "b"], [0.7, -0.4])
    once = RowsPass(base, 1)
    loras = {key: read_row_lora(path, base) for key, path in paths.items()}
    with loaded(base, loras) as adapters, adapters.rows([{"a": 0.7, "b": -0.4}]):
        assert near(once.of(base.unet), once.of(pipeline.unet.double()))


def test_lora_on_text_encoders_acts_as_in_diffusers_and_leaves_no_trace(
    base: BaseModel, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    path = lora_file(base, tmp_path, train_text_encoder=True, alpha=2.5)
    pipeline = base.family.load_pipeline(folder_of(base, request), dtype=torch.float32)
    pipeline.load_lora_weights(str(path), adapter_name="one")
    pipeline.set_adapters(["one"], [0.7])
    theirs = (
        pipeline.encode_prompt("a red star", None, "cpu")
        if base.family.pooled
        else pipeline.encode_prompt("a red star", "cpu", 1, False)
    )
    lora = read_row_lora(path, base)
    encoder = PromptEncoder(base)
    plain = encoder.encode("a red star")
    before = [described(*item) for each in base.text_encoders for item in each.state_dict().items()]
    ours = encoder.encode("a red star", loras=[(lora.text, 0.7)])
    assert torch.allclose(ours.prompt_LD, theirs[0][0], atol=1e-5)
    if ours.pooled_P is not None:
        assert torch.allclose(ours.pooled_P, theirs[2][0], atol=1e-5)
    assert not torch.allclose(ours.prompt_LD, plain.prompt_LD, atol=1e-3)
    assert torch.equal(PromptEncoder(base).encode("a red star").prompt_LD, plain.prompt_LD)
    assert before == [described(*item) for each in base.text_encoders for item in each.state_dict().items()]


# ---- rows of one batch -------------------------------------------------------------------------------------------


def test_each_row_has_its_own_loras(base: BaseModel, three: dict[str, RowLora]) -> None:
    rows: Sequence[Mapping[str, float]] = [{"a": 1.0}, {}, {"b": 0.5, "c": 1.5}, {"c": 1.0}]
    base = in_double(base)
    batch = RowsPass(base, 4)
    with loaded(base, three) as adapters:
        with adapters.rows(rows):
            together = batch.of(base.unet)
        for number, row in enumerate(rows):
            with adapters.rows([row]):
                alone = batch.of(base.unet, slice(number, number + 1))
            assert near(together[number], alone[0]), number


def test_rows_do_not_touch_each_other(base: BaseModel, three: dict[str, RowLora]) -> None:
    batch = RowsPass(base, 3)
    bare = batch.of(base.unet)
    with loaded(base, three) as adapters:
        with adapters.rows([{"a": 1.0}, {}, {"b": 1.0}]):
            one = batch.of(base.unet)
        with adapters.rows([{"a": 1.0}, {}, {"c": -2.0}]):
            other = batch.of(base.unet)
    assert torch.equal(one[:2], other[:2])
    assert torch.equal(one[1], bare[1])
    assert not torch.equal(one[2], other[2])


def test_halves_of_guidance_have_the_loras_of_their_row(base: BaseModel, three: dict[str, RowLora]) -> None:
    batch = RowsPass(base, 4)
    rows: list[Mapping[str, float]] = [{"a": 1.0}, {"b": 0.5}]
    with loaded(base, three) as adapters:
        with adapters.rows(rows, repeats=2):
            halves = batch.of(base.unet)
        with adapters.rows([*rows, *rows]):
            assert torch.equal(halves, batch.of(base.unet))


def test_rows_without_loras_have_the_bytes_of_the_base(base: BaseModel, three: dict[str, RowLora]) -> None:
    batch = RowsPass(base, 2)
    bare, modules = batch.of(base.unet), dict(base.unet.named_modules())
    with loaded(base, three) as adapters:
        with adapters.rows([{}, {"a": 0.0}]):
            assert torch.equal(batch.of(base.unet), bare)
        with adapters.rows([{"a": 1.0}, {"b": 1.0}]):
            batch.of(base.unet)
        assert torch.equal(batch.of(base.unet), bare)
    assert dict(base.unet.named_modules()) == modules
    assert torch.equal(batch.of(base.unet), bare)


# ---- loading and forgetting --------------------------------------------------------------------------------------


def test_least_recently_used_lora_is_dropped_and_none_of_the_batch(tiny_base: BaseModel, tmp_path: Path) -> None:
    lora = read_row_lora(lora_file(tiny_base, tmp_path), tiny_base)
    with RowAdapters(tiny_base, capacity=2) as adapters:
        for key in "ab":
            adapters.load(key, lora.unet)
        with adapters.rows([{"a": 1.0}]):
            pass
        adapters.load("c", lora.unet)
        assert adapters.keys == ("a", "c")
        with adapters.rows([{"a": 1.0}, {"c": 1.0}]):
            pass
        adapters.load("d", lora.unet)
        assert adapters.keys == ("a", "c", "d")
        with pytest.raises(ValueError, match="the LoRA b is not loaded"), adapters.rows([{"b": 1.0}]):
            pass


def test_lora_that_is_needed_next_is_not_dropped_for_another(base: BaseModel, three: dict[str, RowLora]) -> None:
    with RowAdapters(base, capacity=2) as adapters:
        for key in "ab":
            adapters.load(key, three[key].unet)
        for key in "ac":
            if not adapters.use(key):
                adapters.load(key, three[key].unet)
        assert adapters.keys == ("a", "c")


def test_lora_that_replaces_another_of_its_key_is_used(tiny_base: BaseModel, tmp_path: Path) -> None:
    first, second = (
        read_row_lora(lora_file(tiny_base, tmp_path, seed=seed, rank=rank), tiny_base)
        for seed, rank in ((0, 4), (1, 9))
    )
    once = RowsPass(tiny_base, 1)
    with loaded(tiny_base, {"a": first}) as adapters:
        with adapters.rows([{"a": 1.0}]):
            before = once.of(tiny_base.unet)
        adapters.load("a", second.unet)
        with adapters.rows([{"a": 1.0}]):
            after = once.of(tiny_base.unet)
    with loaded(tiny_base, {"a": second}, rank=16) as adapters, adapters.rows([{"a": 1.0}]):
        assert torch.equal(once.of(tiny_base.unet), after)
    assert not torch.equal(before, after)


# ---- compiled kernels stay ---------------------------------------------------------------------------------------


def test_row_loras_swapped_change_no_module_shape_or_stride(base: BaseModel, three: dict[str, RowLora]) -> None:
    def state() -> list[Any]:
        layers = [layer for layer in base.unet.modules() if getattr(layer, "stack", None) is not None]
        tensors = [tensor for layer in layers for tensor in (layer.stack.a_JRI, layer.stack.b_JOR)]
        places = [(tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in tensors]
        return [*((id(layer), id(layer.stack)) for layer in layers), *places]

    states = []
    with loaded(base, three) as adapters:
        for rows in ([{"a": 1.0}, {"b": 1.0}], [{"c": 1.0}, {}], [{}, {}], [{"b": 2.0}, {"c": 1.0}]):
            with adapters.rows(rows):
                states.append(state())
    assert len(states[0]) > 20
    assert states[0] == states[1] == states[3]
    assert states[2] == []


def tripled(layers: Mapping[str, LowRank]) -> dict[str, LowRank]:
    """A LoRA of three times the rank."""
    return {
        name: LowRank(down=torch.cat([each.down] * 3), up_OR=torch.cat([each.up_OR] * 3, dim=1))
        for name, each in layers.items()
    }


def test_compiled_graphs_stay_while_loras_change(base: BaseModel, three: dict[str, RowLora]) -> None:
    block = base.unet.mid_block.attentions[0].transformer_blocks[0]
    batch = RowsPass(base, 2)
    with loaded(base, three, steady=True) as adapters:
        block.compile(dynamic=False, backend="eager")
        try:
            with adapters.rows([{"a": 1.0}, {"b": 1.0}]):
                batch.of(base.unet)
            with torch._dynamo.config.patch(error_on_recompile=True):
                for rows in ([{"c": 1.0}, {}], [{"b": 2.0}, {"a": 1.0}]):
                    with adapters.rows(rows):
                        compiled = batch.of(base.unet)
                adapters.load("larger", tripled(three["b"].unet))
                with pytest.raises(RecompileError), adapters.rows([{"larger": 1.0}, {}]):
                    batch.of(base.unet)
        finally:
            block._compiled_call_impl = None
            torch._dynamo.reset()
        with adapters.rows([{"b": 2.0}, {"a": 1.0}]):
            torch.testing.assert_close(compiled, batch.of(base.unet), atol=1e-4, rtol=1e-4)


# ---- what it costs -----------------------------------------------------------------------------------------------


class Operations(TorchDispatchMode):
    """Counts what is no view."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def operations(batch: RowsPass, base: BaseModel) -> int:
    with Operations() as counted:
        batch.of(base.unet)
    return counted.count


def test_eight_loras_cost_two_operations_a_layer(base: BaseModel, three: dict[str, RowLora]) -> None:
    rows: list[Mapping[str, float]] = [{str(number): 1.0} for number in range(8)]
    layers, batch = len(three["a"].unet), RowsPass(base, 16)
    bare = operations(batch, base)
    with loaded(base, {str(number): three["a"] for number in range(8)}) as adapters:
        with adapters.rows(rows, repeats=2):
            assert bare < operations(batch, base) <= bare + 2 * layers
        with Operations() as written, adapters.rows(rows, repeats=2):
            pass
        assert written.count == 0
