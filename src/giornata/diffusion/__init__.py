"""Model code: models, LoRA, noise, latents, data order, formats."""

import logging


def _matters(record: logging.LogRecord) -> bool:
    """bitsandbytes says at its import that it lacks a kernel for products in 4 bits, which nothing here makes."""
    return not str(record.msg).startswith("Failed to load CPU gemm_4bit_forward")


logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(_matters)
