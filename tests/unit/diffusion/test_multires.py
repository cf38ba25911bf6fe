"""Multi-resolution noise, as sd-scripts' pyramid_noise_like adds it up."""

import pytest
import torch
from torch import nn

from giornata.diffusion.draws.randomness import Multires, normal, uniform


def by_sd_scripts(noise: torch.Tensor, iterations: int, discount: float, key: tuple[int, ...]) -> torch.Tensor:
    """Its loop over a batch of one, with our draws in the places of its own."""
    _, c, w, h = noise.shape
    u = nn.Upsample(size=(w, h), mode="bilinear")
    noise = noise.clone()
    for i in range(iterations):
        r = float(uniform(1, "purpose/ratio", *key, i, shape=(1,))) * 2 + 2
        wn, hn = max(1, int(w / (r**i))), max(1, int(h / (r**i)))
        noise += u(normal(1, "purpose", *key, i, shape=(1, c, wn, hn))) * discount**i
        if wn == 1 or hn == 1:
            break
    return noise / noise.std()


@pytest.mark.parametrize("shape", [(4, 16, 24), (4, 5, 3), (1, 1, 8)])
@pytest.mark.parametrize(("iterations", "discount"), [(1, 0.3), (6, 0.8), (10, 1.0)])
def test_multires_noise_equals_sd_scripts_and_has_unit_std(
    shape: tuple[int, int, int], iterations: int, discount: float
) -> None:
    noise, key = normal(2, "noise", shape=shape), (3, 0, 1)
    found = Multires(iterations=iterations, discount=discount).added(noise, 1, "purpose", key)
    torch.testing.assert_close(found, by_sd_scripts(noise[None], iterations, discount, key)[0], rtol=1e-5, atol=1e-6)
    assert found.dtype is torch.float32
    assert float(found.std()) == pytest.approx(1.0, abs=1e-5)


def test_multires_noise_has_more_low_frequencies_and_differs_by_draw() -> None:
    noise, made = normal(2, "noise", shape=(4, 32, 32)), Multires(iterations=6, discount=0.8)
    one, other = made.added(noise, 1, "purpose", (0, 0, 0)), made.added(noise, 1, "purpose", (0, 0, 1))
    assert not torch.equal(one, other)
    assert float(one.mean(dim=(1, 2)).abs().max()) > 3 * float(noise.mean(dim=(1, 2)).abs().max())
