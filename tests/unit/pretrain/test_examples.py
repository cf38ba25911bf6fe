"""What a row is trained on depends on the row, the phase and the epoch alone."""

from dataclasses import replace

import pytest
import torch
from tests.fixtures.pretrain_feeds import SCALING, TOKENS, batch

from giornata.diffusion.draws import randomness
from giornata.diffusion.encode.captions import Embedding
from giornata.pretrain.feeding.examples import MOST_LOGVAR, Example, ExampleDraws, pieces
from giornata.pretrain.feeding.feed import Batch

USES = [(0, 0, 1, row) for row in range(12)]
EMPTY = Embedding(prompt_BLD=torch.full((1, TOKENS, 64), 7.0).half(), pooled_BP=torch.full((1, 32), 7.0).half())


def draws(*, dropped: float = 0.5, purpose: str = "pretrain") -> ExampleDraws:
    return ExampleDraws(
        seed=3, timesteps=1000, scaling=SCALING, proportion_empty_prompts=dropped, empty=EMPTY, purpose=purpose
    )


def tensors(example: Example) -> list[torch.Tensor]:
    noisy, pooled_BP = example.noisy, example.embedding.pooled_BP
    assert pooled_BP is not None
    return [noisy.latents_BCHW, noisy.noise_BCHW, noisy.timesteps_B, example.embedding.prompt_BLD, pooled_BP]


def equal(one: Example, other: Example, rows: slice = slice(None)) -> bool:
    return all(torch.equal(a[rows], b) for a, b in zip(tensors(one), tensors(other), strict=True))


def test_parts_of_a_batch_get_what_the_whole_gets() -> None:
    whole = draws().example(batch(USES, 16), 0)
    for most in (1, 5):
        start = 0
        for part in pieces(batch(USES, 16), most):
            assert equal(whole, draws().example(part, 0), slice(start, start + len(part)))
            start += len(part)
        assert start == len(USES)


@pytest.mark.parametrize("other", ["phase", "epoch", "purpose", "key"])
def test_all_draws_differ_by(other: str) -> None:
    rows = batch(USES, 16)
    one = draws(dropped=0.0).example(rows, 0)
    changed: Batch = rows
    if other == "epoch":
        changed = replace(rows, epochs=[1] * len(USES))
    if other == "key":
        changed = replace(rows, keys=[f"other-{key}" for key in rows.keys])
    drawn = draws(dropped=0.0, purpose="v" if other == "purpose" else "pretrain")
    two = drawn.example(changed, 1 if other == "phase" else 0)
    for name in ("latents_BCHW", "noise_BCHW", "timesteps_B"):
        assert not torch.equal(getattr(one.noisy, name), getattr(two.noisy, name)), name


def test_captions_are_dropped_as_often_as_asked() -> None:
    rows = batch([(0, 0, 2, row) for row in range(400)], 16)
    kept = draws(dropped=0.0).example(rows, 0).embedding.prompt_BLD
    assert torch.equal(kept, rows.prompt_BLD)
    some = draws(dropped=0.25).example(rows, 0).embedding
    dropped_B = (some.prompt_BLD == 7.0).all(dim=(1, 2))
    assert 70 <= int(dropped_B.sum()) <= 130
    assert some.pooled_BP is not None
    assert torch.equal((some.pooled_BP == 7.0).all(dim=1), dropped_B)
    assert torch.equal(some.prompt_BLD[~dropped_B], kept[~dropped_B])
    with pytest.raises(ValueError, match="dropped"):
        ExampleDraws(seed=0, timesteps=10, scaling=SCALING, proportion_empty_prompts=0.1)


def test_latents_are_of_the_posterior_scaled() -> None:
    rows = batch(USES * 40, 16)
    rows = replace(
        rows,
        keys=[str(number) for number in range(len(rows))],
        mean_BCHW=torch.full_like(rows.mean_BCHW, 2.0),
        logvar_BCHW=torch.full_like(rows.logvar_BCHW, 1.0),
    )
    drawn = ExampleDraws(seed=0, timesteps=10, scaling=(0.5, 0.2))
    latents_BCHW = drawn.example(rows, 0).noisy.latents_BCHW
    assert float(latents_BCHW.mean()) == pytest.approx((2.0 - 0.5) * 0.2, abs=0.01)
    assert float(latents_BCHW.std()) == pytest.approx(torch.tensor(0.5).exp().item() * 0.2, rel=0.03)


def test_a_batch_is_the_rows_one_by_one_in_plain_arithmetic() -> None:
    rows, drawn = batch(USES, 16), draws()
    one = drawn.example(rows, 1)
    for number, (epoch, key) in enumerate(zip(rows.epochs, rows.keys, strict=True)):
        place, shape = (1, epoch, key), (4, 2, 2)
        noise_CHW = randomness.normal(3, "pretrain/noise", *place, shape=shape)
        assert torch.equal(one.noisy.noise_BCHW[number], noise_CHW)
        deviation_CHW = (0.5 * rows.logvar_BCHW[number].float().clamp(max=MOST_LOGVAR)).exp()
        sample_CHW = randomness.normal(3, "pretrain/posterior", *place, shape=shape)
        latents_CHW = (rows.mean_BCHW[number].float() + deviation_CHW * sample_CHW - SCALING[0]) * SCALING[1]
        assert torch.equal(one.noisy.latents_BCHW[number], latents_CHW)
        assert one.noisy.timesteps_B[number] == randomness.integer(3, "pretrain/timestep", *place, low=0, high=1000)
        dropped = randomness.uniform(3, "pretrain/caption-dropout", *place, shape=(1,)).item() < 0.5
        prompt_LD = EMPTY.prompt_BLD[0] if dropped else rows.prompt_BLD[number]
        assert torch.equal(one.embedding.prompt_BLD[number], prompt_LD)


def test_text_stays_in_16_bits_and_rows_are_left_as_they_were_fed() -> None:
    rows, before = batch(USES, 16), batch(USES, 16)
    for dropped in (0.0, 0.5, 1.0):
        text = draws(dropped=dropped).example(rows, 0).embedding
        assert text.pooled_BP is not None
        assert text.prompt_BLD.dtype == text.pooled_BP.dtype == torch.float16
    assert torch.equal(rows.prompt_BLD, before.prompt_BLD)
    assert rows.pooled_BP is not None and before.pooled_BP is not None
    assert torch.equal(rows.pooled_BP, before.pooled_BP)


def test_an_empty_prompt_of_32_bits_loses_none_of_them() -> None:
    near = 1.0 + 2**-20
    wide = Embedding(prompt_BLD=torch.full((1, TOKENS, 64), near), pooled_BP=torch.full((1, 32), near))
    rows = batch(USES, 16)
    text = replace(draws(dropped=1.0), empty=wide).example(rows, 0).embedding
    assert text.pooled_BP is not None
    assert bool((text.prompt_BLD == 1.0 + 2**-20).all() and (text.pooled_BP == 1.0 + 2**-20).all())
    some = replace(draws(dropped=0.5), empty=wide).example(rows, 0).embedding.prompt_BLD
    kept_B = (some != 1.0 + 2**-20).all(dim=(1, 2))
    assert 0 < int(kept_B.sum()) < len(rows)
    assert torch.equal(some[kept_B], rows.prompt_BLD[kept_B].float())


def test_float16_text_embeddings_cast_equally_directly_and_through_float32() -> None:
    """Every number of float16, cast at once and by way of float32."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16)
    numbers = numbers[numbers.isfinite()]
    for dtype in (torch.bfloat16, torch.float32):
        assert torch.equal(numbers.to(dtype), numbers.float().to(dtype))
