"""Images per second from FLOPs: `rate = GPUs x peak x MFU / FLOPs of a picture`.

MFU (model FLOPs utilisation) is the share of the GPU's peak that goes into the model's own FLOPs, as defined for PaLM
(Chowdhery et al. 2022, appendix B). A rate that nobody published or measured is an estimate, and says so.
"""

from dataclasses import dataclass

from giornata.pretrain.planning.facts import Facts, Flops, Mark

TERA_PER_GIGA = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Images per second with how they are known. `mfu` is a share of the peak; `basis` is for people."""

    images_per_s: float
    mfu: float
    estimated: bool
    basis: str


def rate_at(*, gpus: int, peak_tflops: float, mfu: float, gflop: float) -> float:
    """Images per second at a share `mfu` of the peak."""
    return gpus * peak_tflops * mfu / (gflop * TERA_PER_GIGA)


def mfu_of(*, images_per_s: float, gpus: int, peak_tflops: float, gflop: float) -> float:
    """The share of the peak that a rate amounts to."""
    return images_per_s * gflop * TERA_PER_GIGA / (gpus * peak_tflops)


def training_speed(facts: Facts, flops: Flops, *, gpu: str, gpus: int) -> Speed:
    """As measured or published for just these GPUs; else by the MFU known for this GPU; else by the guessed one.

    Raises KeyError for an unknown GPU.
    """
    peak = facts.gpu(gpu).peak_tflops
    same = [row for row in facts.training_rates if (row.model, row.gpu) == (flops.model, gpu)]
    for row in (row for row in same if (row.gpus, row.resolution) == (gpus, flops.resolution)):
        mfu = mfu_of(images_per_s=row.images_per_s, gpus=gpus, peak_tflops=peak, gflop=flops.train_gflop)
        estimated = row.mark is Mark.GUESS
        return Speed(images_per_s=row.images_per_s, mfu=mfu, estimated=estimated, basis=f"{row.mark}: {row.source}")
    known = [row for row in same if row.resolution == flops.resolution]
    if known:
        near = min(known, key=lambda row: abs(row.gpus - gpus))
        mfu = mfu_of(images_per_s=near.images_per_s, gpus=near.gpus, peak_tflops=peak, gflop=flops.train_gflop)
        basis = f"estimated: the MFU of {near.gpus} {gpu}, {mfu:.0%}"
    else:
        mfu = facts.value("trainer_mfu")
        basis = f"estimated: roofline at {mfu:.0%} MFU, a guess"
    rate = rate_at(gpus=gpus, peak_tflops=peak, mfu=mfu, gflop=flops.train_gflop)
    return Speed(images_per_s=rate, mfu=mfu, estimated=True, basis=basis)


def encoder_speed(facts: Facts, flops: Flops, *, gpu: str, gflop: float | None = None) -> Speed:
    """One GPU through both towers, or through a part of them that takes `gflop`.

    A rate known at another resolution, or for both towers together, is carried over at equal FLOP/s: an estimate.
    Raises KeyError for an unknown GPU.
    """
    peak = facts.gpu(gpu).peak_tflops
    wanted = flops.encode_gflop if gflop is None else gflop
    same = [row for row in facts.encoder_rates if (row.model, row.gpu) == (flops.model, gpu)]
    same.sort(key=lambda row: row.resolution != flops.resolution)
    for row in same:
        there = facts.flops_of(row.model, row.resolution).encode_gflop
        mfu = mfu_of(images_per_s=row.images_per_s, gpus=1, peak_tflops=peak, gflop=there)
        exact = row.resolution == flops.resolution and wanted == there
        basis = f"{row.mark}: {row.source}" if exact else f"estimated: by FLOPs from {row.resolution} px on {gpu}"
        estimated = not exact or row.mark is Mark.GUESS
        rate = row.images_per_s * there / wanted
        return Speed(images_per_s=rate, mfu=mfu, estimated=estimated, basis=basis)
    mfu = facts.value("encoder_mfu")
    rate = rate_at(gpus=1, peak_tflops=peak, mfu=mfu, gflop=wanted)
    return Speed(images_per_s=rate, mfu=mfu, estimated=True, basis=f"estimated: roofline at {mfu:.0%} MFU, a guess")


def colocated_rate(*, trainers_per_s: float, encoders_per_s: float) -> float:
    """Images per second when the same GPUs encode and train, one after the other: `1 / (1/T + 1/E)`.

    On the seed's table 1 at 256 px: 4068 with 32 x 291 gives 2832; it found 2811.
    """
    return 1 / (1 / trainers_per_s + 1 / encoders_per_s)
