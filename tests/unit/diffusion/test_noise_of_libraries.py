"""What libraries say for nothing is not heard, and what they say for a reason is."""

import ast
import inspect
import logging

import bitsandbytes.backends.cpu.ops as kernels
import pytest
import transformers.utils.import_utils as lazy

import giornata.diffusion  # noqa: F401  (sets the filter)


def test_log_filter_drops_only_missing_4bit_kernel_warning(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger(kernels.__name__)
    said = [text for text in _texts(kernels) if "gemm_4bit_forward from" in text]
    assert len(said) == 1  # the library's own words; should they change, the filter has to follow
    logger.warning(said[0], "No module named 'kernels'")
    logger.warning("Failed to load the library: %s", "libgomp is missing")
    assert caplog.messages == ["Failed to load the library: libgomp is missing"]


def test_log_filter_drops_only_torchvision_warning_of_clip_image_processor(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger(lazy.__name__)
    (said,) = [text for text in _texts(lazy) if "requires torchvision" in text]
    logger.warning(f"`CLIPImageProcessor{said}CLIPImageProcessorPil` for backward compatibility.")
    logger.warning("`Sam3Model` requires torchvision")
    logger.warning("requires torch >= 2.4, but found torch 2.1")
    assert caplog.messages == ["`Sam3Model` requires torchvision", "requires torch >= 2.4, but found torch 2.1"]


def _texts(module: object) -> list[str]:
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
