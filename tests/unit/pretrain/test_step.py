"""The gradient of a step is that of the mean loss over its rows, by however many passes and trainers."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.fixtures.pretrain_feeds import SCALING, batch
from torch import nn

from giornata.diffusion.optim.objective import Objective
from giornata.pretrain.feeding.examples import Example, ExampleDraws, blank, pieces
from giornata.pretrain.run_state.peers import Channel
from giornata.pretrain.training.models import noise_scheduler
from giornata.pretrain.training.parallel import Sharding
from giornata.pretrain.training.step import BINS, Passes

SCHEDULER = noise_scheduler("epsilon")
OBJECTIVE = Objective(scheduler=SCHEDULER, prediction_type="epsilon")
ROWS = [(0, 0, shard, row) for shard in range(3) for row in range(4)]


class LinearModel(nn.Module):
    """Called as a UNet is; two numbers for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.slope_C11 = nn.Parameter(torch.tensor([0.5, -1.0, 2.0, 0.1]).view(4, 1, 1))
        self.offset_C11 = nn.Parameter(torch.tensor([0.3, 0.0, -0.2, 1.0]).view(4, 1, 1))

    def forward(self, shown_BCHW: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor]:
        return (shown_BCHW * self.slope_C11 + self.offset_C11,)


class OfTwo(Channel):
    """One of two trainers, who hears nothing of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.world = 2

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return values.detach().double()


def examples(uses: Sequence[tuple[int, int, int, int]], most: int) -> list[Example]:
    draws = ExampleDraws(seed=1, timesteps=1000, scaling=SCALING)
    return [draws.example(each, 0) for each in pieces(batch(uses, 16), most)]


def passes(model: nn.Module, channel: Channel) -> Passes:
    sharding = Sharding(
        model=model,
        unet=model,  # type: ignore[arg-type]
        device=torch.device("cpu"),
        dtype=torch.float32,
        autocast=False,
    )
    return Passes(sharding, OBJECTIVE, channel)


def gradient(model: nn.Module) -> torch.Tensor:
    found = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
    model.zero_grad()
    return found


def by_definition() -> tuple[float, torch.Tensor, torch.Tensor]:
    """Mean loss over the rows, its gradient, and each row's loss: the squared error of the noise."""
    model, losses = LinearModel(), []
    for example in examples(ROWS, 1):
        noisy = example.noisy
        kept = SCHEDULER.alphas_cumprod[noisy.timesteps_B].view(-1, 1, 1, 1)
        shown_BCHW = kept.sqrt() * noisy.latents_BCHW + (1 - kept).sqrt() * noisy.noise_BCHW
        losses.append((model(shown_BCHW)[0] - noisy.noise_BCHW).square().mean())
    mean = torch.stack(losses).mean()
    mean.backward()
    return mean.item(), gradient(model), torch.stack(losses).detach()


@pytest.mark.parametrize("most", [12, 5, 1])
def test_parts_of_a_step_give_the_gradient_of_the_whole(most: int) -> None:
    loss, expected, _ = by_definition()
    model = LinearModel()
    found = passes(model, Channel()).train(examples(ROWS, most), rows=12)
    assert (found.mean, found.rows) == (pytest.approx(loss, rel=1e-5), 12)
    torch.testing.assert_close(gradient(model), expected, rtol=1e-4, atol=1e-5)


def test_two_trainers_with_uneven_shares_have_it_on_average() -> None:
    _, expected, _ = by_definition()
    found = []
    for mine in (ROWS[:7], ROWS[7:]):
        model = LinearModel()
        passes(model, OfTwo()).train(examples(mine, 4), rows=12)
        found.append(gradient(model))
    torch.testing.assert_close(torch.stack(found).mean(dim=0), expected, rtol=1e-4, atol=1e-5)


def test_blank_rows_change_neither_loss_nor_gradient() -> None:
    loss, expected, _ = by_definition()
    model = LinearModel()
    nothing = blank((64, 32), rows=3, side=2)
    found = passes(model, Channel()).train([nothing, *examples(ROWS, 8)], rows=12)
    assert (found.mean, found.rows) == (pytest.approx(loss, rel=1e-5), 12)
    torch.testing.assert_close(gradient(model), expected, rtol=1e-4, atol=1e-5)


def test_losses_are_told_by_level_of_noise() -> None:
    _, _, losses = by_definition()
    levels = torch.cat([each.noisy.timesteps_B for each in examples(ROWS, 12)]) * BINS // 1000
    found = passes(LinearModel(), Channel()).judge(examples(ROWS, 5))
    expected = [
        float(losses[levels == level].mean()) if bool((levels == level).any()) else None for level in range(BINS)
    ]
    assert None in expected
    assert found.by_level == tuple(each if each is None else pytest.approx(each, rel=1e-4) for each in expected)
