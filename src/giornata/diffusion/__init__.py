"""Model code: models, LoRA, noise, latents, data order, formats. Read `draws`, `base`, `encode`, then `adapter`."""

import logging


def _matters(record: logging.LogRecord) -> bool:
    """Return False for bitsandbytes' message at its import that it lacks a kernel for products in 4 bits, which
    nothing here makes."""
    return not str(record.msg).startswith("Failed to load CPU gemm_4bit_forward")


def _is_missed(record: logging.LogRecord) -> bool:
    """Return False for transformers' message that a class for pictures reads them with Pillow, for want of
    torchvision. Nothing here gives such a class pictures: diffusers only names the classes when samples are drawn."""
    return "requires torchvision (not installed); falling back to" not in str(record.msg)


logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(_matters)
logging.getLogger("transformers.utils.import_utils").addFilter(_is_missed)
