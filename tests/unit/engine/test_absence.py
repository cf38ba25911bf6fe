import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from giornata.engine.process_setup import absent

NAME = "a_package_that_is_seldom_needed"


@pytest.fixture(autouse=True)
def package(tmp_path: Path) -> Iterator[None]:
    (tmp_path / f"{NAME}.py").write_text("WORTH = 7\n")
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    yield
    sys.path.remove(str(tmp_path))
    sys.modules.pop(NAME, None)


def test_within_it_is_as_if_it_were_not_installed() -> None:
    with absent(NAME):
        assert importlib.util.find_spec(NAME) is None
        with pytest.raises(ImportError):
            importlib.import_module(NAME)
    assert importlib.util.find_spec(NAME) is not None


def test_afterwards_it_can_be_imported_also_after_a_failure() -> None:
    with pytest.raises(OSError, match="no device"), absent(NAME):
        raise OSError("no device")
    assert importlib.import_module(NAME).WORTH == 7


def test_absent_keeps_already_loaded_module_importable() -> None:
    loaded = importlib.import_module(NAME)
    with absent(NAME):
        assert importlib.import_module(NAME) is loaded
    assert sys.modules[NAME] is loaded
