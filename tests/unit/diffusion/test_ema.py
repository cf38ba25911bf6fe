"""The running average is that of diffusers, and can be taken out and put back bit for bit."""

import pytest
import torch
from diffusers.training_utils import EMAModel

from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.optim.optimizer import WeightAverage


def moved(parameter: torch.nn.Parameter, step: int) -> None:
    with torch.no_grad():
        parameter.add_(normal(1, "move", step, shape=(3, 4)))


@pytest.mark.parametrize("decay", [0.3, 0.999])
def test_ema_equals_diffusers_ema_model(decay: float) -> None:
    parameter = torch.nn.Parameter(normal(1, "start", shape=(3, 4)))
    ours = WeightAverage({"a": parameter}, decay=decay)
    theirs = EMAModel([parameter], decay=decay)
    for step in range(1, 40):
        moved(parameter, step)
        ours.update(step)
        theirs.step([parameter])
        torch.testing.assert_close(ours.tensors["a"], theirs.shadow_params[0])
    assert not torch.allclose(ours.tensors["a"], parameter)


def test_taken_out_and_put_back_it_goes_on_as_if_nothing_happened() -> None:
    def run(interrupted_at: int | None) -> torch.Tensor:
        parameter = torch.nn.Parameter(normal(1, "start", shape=(3, 4)))
        average = WeightAverage({"a": parameter}, decay=0.9)
        for step in range(1, 20):
            moved(parameter, step)
            average.update(step)
            if step == interrupted_at:
                kept = {f"ema.{name}": tensor for name, tensor in average.tensors.items()}
                average = WeightAverage({"a": parameter}, decay=0.9)
                average.restore(kept)
        return average.tensors["a"]

    assert torch.equal(run(7), run(None))


def test_ema_restored_from_nothing_begins_at_current_weights() -> None:
    parameter = torch.nn.Parameter(normal(1, "start", shape=(3, 4)))
    average = WeightAverage({"a": parameter}, decay=0.9)
    moved(parameter, 1)
    average.restore({})
    assert torch.equal(average.tensors["a"], parameter)
