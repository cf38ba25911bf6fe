"""From measured rates of one GPU to the whole schedule of Stable Diffusion 2 base and its price."""

from collections.abc import Iterator, Mapping
from typing import Any

from giornata.pretrain.planning.facts import load_facts
from giornata.pretrain.planning.pricing import Choice, mfu_of
from giornata.pretrain.planning.ranking import rank
from giornata.pretrain.planning.request import request_of, schedule_of
from giornata.pretrain.recipes import sd2_base

TRAINERS = {"H100": "4xp5.48xlarge", "H200": "4xp5en.48xlarge"}
"""32 GPUs each."""


def gpu_of(device: str) -> str | None:
    """The name in the plan's facts of what torch calls a device; None for one without a plan."""
    return next((gpu for gpu in TRAINERS if gpu in device), None)


def planned(gpu: str, training: Mapping[int, float], encoding: Mapping[int, float]) -> list[dict[str, Any]]:
    """The schedule on 32 H100 and on 32 H200, the cheapest mode of each first.

    `training` and `encoding`: images/s of one `gpu` by resolution, with latents at hand, and through both towers. The
    plan carries them over to 32 (what a network costs is not in it); the card that was not measured is given the mean
    MFU of the one that was. Raises InvalidInput for rates of no number.
    """
    facts = load_facts()
    peak = facts.gpu(gpu).peak_tflops
    mfus = [
        mfu_of(images_per_s=rate, gpus=1, peak_tflops=peak, gflop=facts.flops_of("sd2", resolution).train_gflop)
        for resolution, rate in training.items()
    ]
    request = request_of(
        {
            **schedule_of(sd2_base()),
            "trainers": list(TRAINERS.values()),
            "trainer_mfu": sum(mfus) / len(mfus),
            "rates": [
                {"gpu": gpu, "gpus": 1, "resolution": resolution, "images_per_s": rate}
                for resolution, rate in training.items()
            ],
            "encoder_rates": [
                {"gpu": gpu, "resolution": resolution, "images_per_s": rate} for resolution, rate in encoding.items()
            ],
        }
    )
    return list(_told(rank(request, facts).choices))


def _told(choices: tuple[Choice, ...]) -> Iterator[dict[str, Any]]:
    for choice in choices:
        yield {
            "name": choice.name,
            "days": round(choice.bill.hours / 24, 2),
            "total_usd": round(choice.bill.total_usd),
            "trainer_usd": round(choice.bill.trainer_usd),
            "encoders": [phase.encoders for phase in choice.phases],
            "mfu": [round(phase.training.mfu, 3) for phase in choice.phases],
            "basis": [phase.training.basis for phase in choice.phases],
        }
