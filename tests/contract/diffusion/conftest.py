"""What is held to other libraries or needs a whole model, on the tiny models."""

from tests.fixtures.tiny_model import exact_base, tiny_base, tiny_folder, tiny_sd15_base, tiny_sd15_folder  # noqa: F401
