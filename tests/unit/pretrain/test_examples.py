"""What a row is trained on depends on the row, the phase and the epoch alone."""

from dataclasses import replace

import pytest
import torch
from tests.fixtures.pretrain_feeds import SCALING, TOKENS, batch

from giornata.pretrain.feeding.batch import Batch
from giornata.pretrain.feeding.examples import Draws, EmptyPrompt, Example, pieces

USES = [(0, 0, 1, row) for row in range(12)]
EMPTY = EmptyPrompt(prompt_LD=torch.full((TOKENS, 64), 7.0), pooled_P=torch.full((32,), 7.0))


def draws(*, dropped: float = 0.5, purpose: str = "pretrain") -> Draws:
    return Draws(
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
    assert torch.equal(kept, rows.prompt_BLD.float())
    some = draws(dropped=0.25).example(rows, 0).embedding
    dropped_B = (some.prompt_BLD == 7.0).all(dim=(1, 2))
    assert 70 <= int(dropped_B.sum()) <= 130
    assert some.pooled_BP is not None
    assert torch.equal((some.pooled_BP == 7.0).all(dim=1), dropped_B)
    assert torch.equal(some.prompt_BLD[~dropped_B], kept[~dropped_B])
    with pytest.raises(ValueError, match="dropped"):
        Draws(seed=0, timesteps=10, scaling=SCALING, proportion_empty_prompts=0.1)


def test_latents_are_of_the_posterior_scaled() -> None:
    rows = batch(USES * 40, 16)
    rows = replace(
        rows,
        keys=[str(number) for number in range(len(rows))],
        mean_BCHW=torch.full_like(rows.mean_BCHW, 2.0),
        logvar_BCHW=torch.full_like(rows.logvar_BCHW, 1.0),
    )
    drawn = Draws(seed=0, timesteps=10, scaling=(0.5, 0.2))
    latents_BCHW = drawn.example(rows, 0).noisy.latents_BCHW
    assert float(latents_BCHW.mean()) == pytest.approx((2.0 - 0.5) * 0.2, abs=0.01)
    assert float(latents_BCHW.std()) == pytest.approx(torch.tensor(0.5).exp().item() * 0.2, rel=0.03)
