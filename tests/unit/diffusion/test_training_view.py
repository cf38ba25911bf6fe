"""What the dashboard shows of a picture before training is what training makes of it."""

from hypothesis import given
from hypothesis import strategies as st

from giornata.control.storage.training_view import trained_view
from giornata.diffusion.encode.latents import CropPolicy
from giornata.protocol.specs import TrainSpec

SIDES = st.integers(16, 6000)


@given(
    SIDES,
    SIDES,
    st.sampled_from([512, 768, 1024]),
    st.sampled_from([{}, {"enable_bucket": True}, {"enable_bucket": True, "bucket_no_upscale": True}]),
)
def test_a_view_has_the_size_of_training_and_a_crop_inside_the_picture(
    width: int, height: int, resolution: int, buckets: dict[str, bool]
) -> None:
    needed = {"pretrained_model_name_or_path": "m", "dataset": "ds_0", "instance_prompt": "sks"}
    spec = TrainSpec.model_validate({**needed, "resolution": resolution, **buckets})
    view = trained_view("0" * 64, (width, height), spec)
    assert view.trained == CropPolicy.of(spec, seed=0).target((height, width))[::-1]
    left, top, crop_width, crop_height = view.crop
    assert left >= 0
    assert top >= 0
    assert left + crop_width <= width + 1
    assert top + crop_height <= height + 1
    assert view.scale <= 1 or "bucket_no_upscale" not in buckets or min(width, height) < spec.bucket_reso_steps
