"""The tiny models."""

from tests.fixtures.tiny_model import tiny_base, tiny_folder, tiny_sd15_base, tiny_sd15_folder  # noqa: F401
