"""What chance decides in a step is a function of the step, and no two decisions share their numbers."""

import itertools
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from PIL import Image

from giornata.diffusion.draws.randomness import Multires
from giornata.diffusion.draws.sample_order import Sample, by_content
from giornata.diffusion.encode.latents import CropPolicy
from giornata.workloads.train.inputs.sample_set import SampleSet
from giornata.workloads.train.inputs.sampling_plan import SamplingPlan


def sample_set(role: Literal["instance", "class"], count: int) -> SampleSet:
    samples = [
        Sample(role=role, sha256=f"{role}{number}", caption="c", name="n", path=Path("n")) for number in range(count)
    ]
    return SampleSet(
        role=role, samples=by_content(samples), load=lambda _: Image.new("RGB", (64, 64)), size=lambda _: (64, 64)
    )


def draws(*, seed: int = 1, batch: int = 2, micros: int = 2, flip: bool = True, **fields: Any) -> SamplingPlan:
    return SamplingPlan(
        seed=seed,
        batch=batch,
        micros=micros,
        crop_policy=CropPolicy(seed=seed, resolution=64, center_crop=False, random_flip=flip),
        sample_sets=(sample_set("instance", 5), sample_set("class", 3)),
        **{"timesteps": range(1000), **fields},
    )


def test_a_micro_batch_holds_instances_and_then_as_many_class_pictures() -> None:
    assert [draw.role for draw in draws(batch=3).micro_batch(4, 1)] == ["instance"] * 3 + ["class"] * 3


def test_every_draw_has_numbers_of_its_own() -> None:
    """Noise, timestep and posterior of two pictures, micro-batches, steps or seeds are never the same draw."""
    noises: set[tuple[float, ...]] = set()
    keys = [(seed, step, micro) for seed in (1, 2) for step in range(2) for micro in range(2)]
    for seed, step, micro in keys:
        made = draws(seed=seed)
        for draw, what in itertools.product(made.micro_batch(step, micro), ("noise", "posterior")):
            noises.add(tuple(made.normal(what, draw, (3,)).tolist()))
    assert len(noises) == len(keys) * 4 * 2


def test_timesteps_cover_their_range() -> None:
    made = draws()
    seen = [made.timestep(draw) for step in range(300) for draw in made.micro_batch(step, 0)]
    assert 0 <= min(seen) < 20
    assert 980 < max(seen) < 1000


def test_timesteps_stay_in_a_part_of_the_range() -> None:
    made = draws(timesteps=range(300, 310))
    seen = {made.timestep(draw) for step in range(200) for draw in made.micro_batch(step, 0)}
    assert seen == set(range(300, 310))


def test_offset_noise_is_the_same_all_over_a_channel() -> None:
    draw = draws().micro_batch(3, 1)[0]
    plain, offset = (draws(noise_offset=strength).noise(draw, (4, 8, 8)) for strength in (0.0, 0.1))
    added_CHW = offset - plain
    assert float(added_CHW.std(dim=(1, 2)).max()) < 1e-6
    assert len({round(value, 4) for value in added_CHW.mean(dim=(1, 2)).tolist()}) == 4
    assert torch.equal(plain, draws().normal("noise", draw, (4, 8, 8)))


def test_offset_noise_has_the_strength_that_was_asked_for() -> None:
    made = draws(noise_offset=0.1)
    found = [
        made.noise(draw, (4, 8, 8)) - draws().noise(draw, (4, 8, 8))
        for step in range(100)
        for draw in made.micro_batch(step, 0)
    ]
    assert float(torch.stack(found)[..., 0, 0].std()) == pytest.approx(0.1, rel=0.1)


def test_input_perturbation_is_shown_and_not_to_be_told() -> None:
    """sd-scripts: add_noise(latents, noise + ip_noise_gamma * randn, timesteps); the target is noise."""
    made, plain = draws(ip_noise_gamma=0.2), draws()
    shown = []
    for step in range(100):
        for draw in made.micro_batch(step, 0):
            noise = made.noise(draw, (4, 8, 8))
            assert torch.equal(noise, plain.noise(draw, (4, 8, 8)))
            found = made.shown_noise(draw, noise)
            assert found is not None
            shown.append(found - noise)
            assert plain.shown_noise(draw, noise) is None
    assert float(torch.stack(shown).std()) == pytest.approx(0.2, rel=0.02)
    assert len({float(each[0, 0, 0]) for each in shown}) == len(shown)


def test_multi_resolution_noise_comes_after_the_offset() -> None:
    multires, draw = Multires(iterations=4, discount=0.5), draws().micro_batch(3, 1)[0]
    found = draws(multires=multires, noise_offset=0.1).noise(draw, (4, 8, 8))
    offset = draws(noise_offset=0.1).noise(draw, (4, 8, 8))
    assert torch.equal(found, multires.added(offset, 1, f"multires/{draw.role}", draw.key))


@pytest.mark.parametrize(("first", "end"), [(0, 3), (2, 9), (0, 500)])
def test_views_are_exactly_what_the_steps_will_look_at(first: int, end: int) -> None:
    made = draws()
    needed = {draw.view for step in range(first, end) for micro in range(2) for draw in made.micro_batch(step, micro)}
    assert set(made.views(first, end)) == needed


def test_a_long_job_does_not_enumerate_its_draws_for_ever() -> None:
    assert len(draws().views(0, 10**12)) == 8 * 4 * 2


def test_draws_do_not_touch_the_global_generator() -> None:
    before = torch.get_rng_state()
    made = draws()
    made.normal("noise", made.micro_batch(0, 0)[0], (4, 8, 8))
    assert torch.equal(torch.get_rng_state(), before)
