"""How large everything is: SDXL's published shapes on a GPU, and as small as it gets where it is rehearsed."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """`model` is full or tiny. `steps` of a job are counted after `warm` ones; each way is measured `repetitions`
    times. `together` is how many jobs share a batch. `batches` are those that the VAE encodes, `captions` those that
    the text encoders do. `drawn_rows` pictures are drawn at a time, of the `drawn_sizes` in
    benchmarks/rig/picture_sizes.py, the first of them also with `drawn_compile`. `resolutions` and `rounds` are of
    pre-training. `script` is the path of the example script, `fetch` (its published file), or `none`."""

    device: str
    model: str
    resolution: int
    warm: int
    steps: int
    repetitions: int
    together: int
    rank: int
    pictures: int
    batches: tuple[int, ...]
    captions: tuple[int, ...]
    laps: int
    pretrain_size: str
    resolutions: tuple[int, ...]
    rounds: int
    drawn_sizes: tuple[str, ...]
    drawn_rows: int
    drawn_compile: str
    script: str

    def told(self) -> dict[str, Any]:
        """For the JSON file, and for the process of a part."""
        return asdict(self)


SIZES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "cuda": {
            "model": "full",
            "resolution": 1024,
            "warm": 10,
            "steps": 30,
            "repetitions": 3,
            "together": 4,
            "rank": 16,
            "pictures": 4,
            "batches": (1, 2, 4, 8),
            "captions": (1, 8, 32),
            "laps": 8,
            "pretrain_size": "sd2",
            "resolutions": (256, 512),
            "rounds": 1,
            "drawn_sizes": ("square", "published"),
            "drawn_rows": 8,
            "drawn_compile": "on",
        },
        "cpu": {
            "model": "tiny",
            "resolution": 64,
            "warm": 1,
            "steps": 3,
            "repetitions": 1,
            "together": 4,
            "rank": 4,
            "pictures": 2,
            "batches": (1, 2),
            "captions": (1, 2),
            "laps": 2,
            "pretrain_size": "tiny",
            "resolutions": (64,),
            "rounds": 1,
            "drawn_sizes": ("tiny", "tiny-refined"),
            "drawn_rows": 2,
            "drawn_compile": "graphs",
        },
    }
)


def settings_for(device: str, script: str) -> GpuSettings:
    """Those of a device, cuda or cpu."""
    return GpuSettings(device=device, script=script, **SIZES[device])


def settings_from(told: Mapping[str, Any]) -> GpuSettings:
    """What `told` told, after its way through JSON."""
    return GpuSettings(**{name: tuple(value) if isinstance(value, list) else value for name, value in told.items()})
