"""Rates that `giornata pretrain run --synthetic` measured, as a file that `giornata pretrain plan --assume` reads."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from giornata.pretrain.planning.facts import Facts
from giornata.protocol.pretraining import Mode

OTHER_BOARDS = frozenset({"PCIE", "NVL", "MIG"})
"""Cards of the same name that are slower than those that the facts know."""


def gpu_known(device: str, facts: Facts) -> str | None:
    """The facts' name of a device that calls itself so ("NVIDIA A100-SXM4-80GB" is A100-80G); None: unknown."""
    words = re.split(r"[\s-]+", device.upper())
    if OTHER_BOARDS & set(words):
        return None
    for gpu in facts.gpus:
        name, _, memory = gpu.name.upper().partition("-")
        if name in words and (not memory or any(word.startswith(memory) for word in words)):
            return gpu.name
    return None


def assumed_rates(report: Mapping[str, Any], facts: Facts) -> str:
    """The rates of a report of giornata.pretrain.synthetic as TOML.

    A device without a price is named in the first line only. Plans know rates of encoders through both towers: those
    of the text tower alone (hybrid) are left out.
    """
    trainer, encoder = (gpu_known(report[name], facts) for name in ("trainer_device", "encoder_device"))
    encoder = encoder if report["mode"] == Mode.ONLINE else None
    return "\n".join(
        [
            f"# {report['name']}, {report['model']}: {report['trainers_measured']} trainers on"
            f" {report['trainer_device']}, encoders on {report['encoder_device']}",
            *_tables("rates", report, trainer, "trainers_images_per_s", gpus=report["trainers_measured"]),
            *_tables("encoder_rates", report, encoder, "encoder_images_per_s"),
            "",
        ]
    )


def _tables(name: str, report: Mapping[str, Any], gpu: str | None, rate: str, **more: int) -> Iterator[str]:
    for size in report["sizes"] if gpu is not None else ():
        numbers = {**more, "resolution": size["resolution"], "images_per_s": float(size[rate])}
        yield f'[[{name}]]\ngpu = "{gpu}"\n' + "\n".join(f"{key} = {number}" for key, number in numbers.items())
