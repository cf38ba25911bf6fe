"""The models' sizes and cost, against published and counted figures, and how much fits."""

from dataclasses import replace

import pytest
import torch

from giornata.pretrain.feeding.rows_of_phase import share
from giornata.pretrain.recipes import sd2_base, sdxl_tiny
from giornata.pretrain.run_state.costs import step_rates
from giornata.pretrain.run_state.peers import Channel
from giornata.pretrain.training.models import (
    answer_to_zeros,
    flops_per_picture,
    new_unet,
    sheet_flops_per_s,
    unet_on_meta,
)
from giornata.pretrain.training.optimizer import learning_rate
from giornata.pretrain.training.parallel import CPU_ROWS, fitting, micro_batch, shard_model
from giornata.protocol.pretraining import Architecture, Phase


def test_stable_diffusion_2_is_of_its_true_size() -> None:
    assert sum(each.numel() for each in unet_on_meta(Architecture.SD2).parameters()) == 865_910_724


@pytest.mark.parametrize(("resolution", "gflop"), [(256, 539.3), (512, 2408.7)])
def test_flops_per_picture_of_sd2_match_independent_count(resolution: int, gflop: float) -> None:
    """Counted elsewhere, by the same rule of 2 per multiplication."""
    assert flops_per_picture(Architecture.SD2, resolution) / 1e9 == pytest.approx(gflop, rel=0.01)


@pytest.mark.parametrize("architecture", [Architecture.SDXL_TINY, Architecture.SHAPES])
def test_fresh_weights_are_a_function_of_the_seed(architecture: Architecture) -> None:
    one, two, other = (dict(new_unet(architecture, seed).named_parameters()) for seed in (1, 1, 2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    drawn = [name for name in one if one[name].ndim > 1 and bool(one[name].any())]
    assert len(drawn) > 20
    assert not any(torch.equal(one[name], other[name]) for name in drawn)


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA A100-PCIE-40GB", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_data_sheet_counts_for_its_own_board_alone(name: str, rate: float | None) -> None:
    """As cudaGetDeviceProperties names them."""
    assert sheet_flops_per_s(name) == rate


def test_warm_up_ends_at_the_rate_and_never_is_nothing() -> None:
    phase = Phase(name="a", resolution=64, samples=1, learning_rate=1e-4, lr_warmup_steps=4)
    rates = [learning_rate(phase, step, steps=6) for step in range(6)]
    assert rates == pytest.approx([0.25e-4, 0.5e-4, 0.75e-4, 1e-4, 1e-4, 1e-4])
    assert learning_rate(Phase(name="a", resolution=64, samples=1), 0, steps=1) == 1e-4


def test_the_micro_batch_halves_until_it_fits_with_room() -> None:
    tried: list[int] = []

    def attempt(rows: int) -> None:
        tried.append(rows)
        if rows > 40:
            raise torch.OutOfMemoryError("full")

    assert fitting(128, attempt) == 32
    assert tried == [144, 72, 36]
    assert fitting(16, attempt) == 16

    def never(rows: int) -> None:
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError):
        fitting(128, never)
    channel = Channel()
    assert micro_batch(1000, torch.device("cpu"), never, channel) == CPU_ROWS
    assert micro_batch(share(10, rank=0, world=4), torch.device("cpu"), never, channel) == 3


def test_meter_computes_image_rate_mfu_and_usd_per_second() -> None:
    found = step_rates(rows=16, lap_s=2.0, waited_s=0.5, peak_per_s=20.0)
    assert found == {"images_per_s": 8.0, "data_wait_share": 0.25, "mfu": 0.4}
    config = sd2_base()
    assert config.usd_per_s(32, 8) == 0.0
    from dataclasses import replace

    priced = replace(config, workers=replace(config.workers, trainer_usd_per_h=3.6, encoder_usd_per_h=0.9))
    assert priced.usd_per_s(32, 8) == pytest.approx((32 * 3.6 + 8 * 0.9) / 3600)


def test_pictures_reach_the_first_convolution_with_channels_last_where_that_is_asked_for() -> None:
    train = sdxl_tiny().train
    for wanted in (False, True):
        unet = new_unet(Architecture.SDXL_TINY, 0)
        sharding = shard_model(unet, replace(train, channels_last=wanted), Channel(), torch.device("cpu"))
        shown: list[torch.Tensor] = []
        unet.conv_in.register_forward_hook(lambda _, args, __, shown=shown: shown.extend(args))
        answer_to_zeros(sharding.unet, rows=2, side=8, device=torch.device("cpu"))
        assert [each.is_contiguous(memory_format=torch.channels_last) for each in shown] == [wanted]
