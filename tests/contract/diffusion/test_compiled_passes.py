"""Kernels stay while rows, LoRAs, timesteps and guidance change, and their answers are used where they are right."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.contract.diffusion.test_denoising_passes import control, control_net
from tests.contract.diffusion.test_row_adapters import lora_file, tripled
from tests.fixtures.drawing import ReferencePicture, text_row
from torch._dynamo.utils import counters

from giornata.diffusion.adapter.row_adapters import RowAdapters
from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.files.row_lora import RowLora, read_row_lora
from giornata.diffusion.sampling.attention import look_up_attention_once
from giornata.diffusion.sampling.compiled_passes import CompiledPasses, KernelRules, width_of
from giornata.diffusion.sampling.denoising import Denoiser
from giornata.diffusion.sampling.rows import DenoisingRow

TOLERANCE = {"atol": 2e-4, "rtol": 2e-4}


@pytest.fixture(scope="module")
def base(tiny_base: BaseModel) -> BaseModel:
    look_up_attention_once(tiny_base.unet)
    return tiny_base


@pytest.fixture(scope="module")
def loras(base: BaseModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RowLora]:
    folder = tmp_path_factory.mktemp("loras")
    files = {key: lora_file(base, folder, seed=seed, rank=rank) for seed, (key, rank) in enumerate(RANKS.items())}
    return {key: read_row_lora(path, base) for key, path in files.items()}


RANKS = {"a": 2, "b": 4, "c": 3}


@pytest.fixture
def adapters(base: BaseModel, loras: Mapping[str, RowLora]) -> Iterator[RowAdapters]:
    with RowAdapters(base, steady=True) as made:
        for key, lora in loras.items():
            made.load(key, lora.unet)
        yield made


@pytest.fixture
def kernels(base: BaseModel) -> Iterator[Callable[..., CompiledPasses]]:
    """Makes compiled passes, and closes them."""
    made: list[CompiledPasses] = []

    def make(**rules: Any) -> CompiledPasses:
        given = {"compiler": "eager 1", "checked": False, "backend": "eager", **rules}
        made.append(CompiledPasses(base.unet, KernelRules(**given)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def rows_of(base: BaseModel, *loras: Mapping[str, float], **wanted: Any) -> list[DenoisingRow]:
    return [text_row(base, ReferencePicture(seed=seed, **wanted), loras=each) for seed, each in enumerate(loras)]


def graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


def test_kernels_stay_while_rows_loras_timesteps_and_guidance_change(
    base: BaseModel, adapters: RowAdapters, kernels: Callable[..., CompiledPasses]
) -> None:
    denoiser = Denoiser(base.unet, loras=adapters, kernels=kernels())
    plain = Denoiser(base.unet, loras=adapters)
    for rows in (rows_of(base, {"a": 1.0}, {}, {}, {}), rows_of(base, {}, {}, {}, {})):  # both graphs, of 8 rows
        denoiser.step(rows)
    made = graphs()
    others = [
        rows_of(base, {"b": 1.0}, {"a": 0.5, "c": -1.0}, {}),
        rows_of(base, {"c": 1.0}, {"c": 1.0}, {"a": 1.0}, {"b": 2.0}, class_name="DDIMScheduler", guidance=3.0),
        [*rows_of(base, {"b": 1.0}, {}), *rows_of(base, {"a": 1.0}, {}, {}, guidance=1.0, steps=5)],
        rows_of(base, {}, {}, {}, guidance=9.0, steps=4),
    ]
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in others:
            with torch.compiler.set_stance("force_eager"):
                expected = plain.predict(rows)
            for ours, theirs in zip(denoiser.predict(rows), expected, strict=True):
                torch.testing.assert_close(ours, theirs, **TOLERANCE)
            assert denoiser.compiler == "eager 1"
            denoiser.step(rows)
            denoiser.step(rows)
    assert made > 0
    assert graphs() == made


def test_a_lora_of_a_larger_rank_is_compiled_and_a_known_one_is_not_afterwards(
    base: BaseModel, adapters: RowAdapters, loras: Mapping[str, RowLora], kernels: Callable[..., CompiledPasses]
) -> None:
    denoiser = Denoiser(base.unet, loras=adapters, kernels=kernels())
    denoiser.step(rows_of(base, {"a": 1.0}))
    first, layout = graphs(), adapters.layout
    adapters.load("larger", tripled(loras["b"].unet))  # of rank 12, where a layer has room for 8
    denoiser.step(rows_of(base, {"larger": 1.0}))
    assert graphs() > first
    assert adapters.layout == layout + 1
    larger = graphs()
    denoiser.step(rows_of(base, {"b": 1.0}))
    assert graphs() == larger


def test_a_lora_on_one_layer_gives_places_to_all_layers_of_its_kind(
    base: BaseModel, loras: Mapping[str, RowLora]
) -> None:
    name = next(name for name in loras["a"].unet if name.endswith("attn1.to_q"))
    alike = [each for each in loras["a"].unet if each.endswith("attn1.to_q")]
    with RowAdapters(base, steady=True) as adapters:
        adapters.load("one", {name: loras["a"].unet[name]})
        with adapters.rows([{"one": 1.0}]):
            layers = [n for n, layer in base.unet.named_modules() if getattr(layer, "stack", None) is not None]
    assert sorted(layers) == sorted(alike)
    assert len(alike) > 1


def test_rows_that_fill_up_a_pass_change_no_other_row(
    base: BaseModel, kernels: Callable[..., CompiledPasses]
) -> None:
    guided = text_row(base, ReferencePicture(), controls=(control(control_net(base, 1)),))
    unguided = text_row(base, ReferencePicture(seed=2, guidance=1.0))
    unguided.text = replace(unguided.text, prompt_LD=torch.cat([unguided.text.prompt_LD] * 2))
    widths: list[int] = []
    expected = Denoiser(base.unet).predict([unguided, guided])
    hook = base.unet.register_forward_pre_hook(lambda _, given: widths.append(len(given[0])))
    try:
        predicted = Denoiser(base.unet, kernels=kernels()).predict([unguided, guided])
    finally:
        hook.remove()
    for ours, theirs in zip(predicted, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **TOLERANCE)
    assert widths == [4]
    assert [width_of(rows) for rows in (1, 2, 3, 4, 5)] == [1, 2, 4, 4, 8]


def test_kernels_that_answer_otherwise_are_not_used_and_said(
    base: BaseModel, kernels: Callable[..., CompiledPasses]
) -> None:
    passes = kernels(checked=True, backend=_a_percent_too_much)
    denoiser, rows = Denoiser(base.unet, kernels=passes), rows_of(base, {}, {})
    expected = Denoiser(base.unet).predict(rows)
    for _ in range(2):
        for ours, theirs in zip(denoiser.predict(rows), expected, strict=True):
            torch.testing.assert_close(ours, theirs, **TOLERANCE)
        assert denoiser.compiler is None
    [said] = passes.said
    assert "4 rows of 8×8 latents with 77 tokens are made without compiled kernels" in said
    assert "away from the plain one" in said


def _a_percent_too_much(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
    return lambda *given: tuple(each * 1.01 for each in graph.forward(*given))


def test_kernels_that_do_not_repeat_themselves_are_not_used(
    base: BaseModel, kernels: Callable[..., CompiledPasses]
) -> None:
    calls = 0

    def drifting(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        def run(*given: Any) -> object:
            nonlocal calls
            calls += 1
            return tuple(each * (1 + 1e-6 * calls) for each in graph.forward(*given))

        return run

    passes = kernels(checked=True, backend=drifting)
    Denoiser(base.unet, kernels=passes).predict(rows_of(base, {}))
    assert "other bytes when it was made a second time" in passes.said[0]


def test_right_kernels_are_checked_once_for_each_layout(
    base: BaseModel, adapters: RowAdapters, kernels: Callable[..., CompiledPasses]
) -> None:
    passes = []
    hook = base.unet.register_forward_pre_hook(lambda *_: passes.append(1))
    try:
        denoiser = Denoiser(base.unet, loras=adapters, kernels=kernels(checked=True))
        counts = []
        for loras in ({}, {"a": 1.0}, {"b": 1.0}, {}):
            denoiser.predict(rows_of(base, loras))
            counts.append(len(passes))
            assert denoiser.compiler == "eager 1"
    finally:
        hook.remove()
    assert counts == [3, 6, 7, 8]


def test_a_compiler_that_fails_is_done_without_unless_it_was_asked_for(
    base: BaseModel, kernels: Callable[..., CompiledPasses]
) -> None:
    def broken(_graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        raise RuntimeError("no kernels today")

    passes = kernels(checked=True, backend=broken)
    denoiser, rows = Denoiser(base.unet, kernels=passes), rows_of(base, {})
    assert len(denoiser.predict(rows)) == 1
    assert denoiser.compiler is None
    assert "no kernels today" in passes.said[0]
    assert len(denoiser.predict(rows)) == 1
    with pytest.raises(RuntimeError, match="no kernels today"):
        Denoiser(base.unet, kernels=kernels(backend=broken)).predict(rows)


def test_kernels_come_after_so_many_plain_passes_and_for_so_many_kinds(
    base: BaseModel, kernels: Callable[..., CompiledPasses]
) -> None:
    denoiser = Denoiser(base.unet, kernels=kernels(passes_before=2, most_kinds=1))

    def by_kernels(count: int) -> bool:
        denoiser.predict(rows_of(base, *[{}] * count))
        return denoiser.compiler is not None

    assert [by_kernels(1) for _ in range(4)] == [False, False, True, True]
    assert [by_kernels(2) for _ in range(4)] == [False] * 4
    assert by_kernels(1)


def test_a_unet_is_as_before_once_its_kernels_are_closed(base: BaseModel) -> None:
    passes = CompiledPasses(base.unet, KernelRules(compiler="eager 1", checked=False, backend="eager"))
    Denoiser(base.unet, kernels=passes).predict(rows_of(base, {}))
    assert any(module._compiled_call_impl is not None for module in base.unet.modules())
    passes.close()
    assert all(module._compiled_call_impl is None for module in base.unet.modules())


def test_picture_alone_is_drawn_plainly_where_kernels_are_for_several(
    base: BaseModel, kernels: Callable[..., CompiledPasses]
) -> None:
    denoiser = Denoiser(base.unet, kernels=kernels(of_one=False))
    compilers = []
    for count in (1, 2, 1):
        denoiser.predict(rows_of(base, *[{}] * count))
        compilers.append(denoiser.compiler)
    assert compilers == [None, "eager 1", None]
