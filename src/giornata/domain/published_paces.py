"""What others published of SDXL adapter training on GPUs, for a project that has trained nothing yet.

Nothing here was measured with Giornata: every figure is of another trainer, as its source tells it, collected in
November 2026. So all that follows from them is a range, and never a promise.
"""

from dataclasses import dataclass

AT_SIDE_PX = 1024
COLLECTED = "November 2026"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPace:
    """Seconds that one picture of 1024 x 1024 took in a training step of an SDXL adapter, least and greatest.

    `price_micro_usd_per_hour` is a published price of the GPU, None where no source states one.
    """

    gpu: str
    least_s: float
    greatest_s: float
    source: str
    price_micro_usd_per_hour: int | None = None
    price_source: str = ""

    def step_s(self, *, side_px: float, pictures: int) -> tuple[float, float]:
        """The range of a step. A picture takes time by its area at the least; a small one gains nothing at the worst,
        and the attention of a large one grows with the square of its area."""
        area = (side_px / AT_SIDE_PX) ** 2
        return self.least_s * area * pictures, self.greatest_s * max(1.0, area**2) * pictures


_SALAD = "SaladCloud, dreambooth/train_on_salad.py, 2024"

PUBLISHED_PACES = (
    PublishedPace(
        gpu="RTX 4090",
        least_s=0.45,
        greatest_s=2.26,
        source="SaladCloud's report of 1,000 jobs (1.80 to 2.66 s for four pictures) and sd-scripts #834",
        price_micro_usd_per_hour=300_000,
        price_source=_SALAD,
    ),
    PublishedPace(
        gpu="RTX 3090 Ti",
        least_s=1.12,
        greatest_s=1.12,
        source="sd-scripts #827",
        price_micro_usd_per_hour=280_000,
        price_source=_SALAD,
    ),
    PublishedPace(
        gpu="RTX 3090",
        least_s=1.23,
        greatest_s=1.23,
        source="kohya_ss #1288, 2023-08",
        price_micro_usd_per_hour=250_000,
        price_source=_SALAD,
    ),
    PublishedPace(gpu="RTX 3060", least_s=2.4, greatest_s=2.8, source="kohya_ss #1288, 2023-08"),
    PublishedPace(gpu="L40S", least_s=0.585, greatest_s=1.029, source="SimpleTuner, SEGMENTED_CHECKPOINTING.md"),
    PublishedPace(
        gpu="H100",
        least_s=0.606,
        greatest_s=1.080,
        source="SimpleTuner, SEGMENTED_CHECKPOINTING.md",
        price_micro_usd_per_hour=3_990_000,
        price_source="lambda.ai/instances, 2026-09-20, an eighth of eight",
    ),
)


def published_pace(device: str) -> PublishedPace | None:
    """Of a device as a node names it (`NVIDIA GeForce RTX 4090`); None when nobody published one."""
    if "laptop" in device.lower():
        return None
    named = [each for each in PUBLISHED_PACES if f" {each.gpu} ".lower() in f" {device} ".lower()]
    return max(named, key=lambda each: len(each.gpu), default=None)
