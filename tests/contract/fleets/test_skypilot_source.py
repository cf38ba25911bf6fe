"""A new machine gets Giornata from where the operator says, and never by its name from a package index."""

import os
import subprocess
import sys
import zipfile

import pytest
from pydantic import ValidationError
from tests.contract.fleets.driver_skypilot import IMAGE, SkyPilotUnderTest

from giornata.domain.errors import InvalidInput
from giornata.fleets.skypilot.task import SkyPilotOptions, setup_of

PACKAGE = "https://wheels.example/giornata-0.1.0-py3-none-any.whl#sha256=" + "0" * 64
METADATA = """Metadata-Version: 2.1
Name: giornata
Version: 0.1.0
Provides-Extra: train
Requires-Dist: torch; extra == "train"
"""


def setup(**options) -> str | None:
    it = SkyPilotUnderTest(**options)
    it.fleet.desired(1)
    it.settle()
    ((task,),) = it.sky.tasks.values()
    return task.get("setup")


def test_fleet_without_image_package_or_setup_is_refused_at_start():
    with pytest.raises(InvalidInput, match=r"fleets\.gpu\.options\.image: is not set.*package to its URL"):
        SkyPilotUnderTest(image=None)


def test_fleet_takes_one_of_image_package_and_setup_and_refuses_two():
    assert setup(image=IMAGE) is None
    assert setup(image=None, package=PACKAGE) == setup_of(PACKAGE)
    assert setup(image=None, setup="make install") == "make install"
    with pytest.raises(InvalidInput, match="image and package are set"):
        SkyPilotUnderTest(image=IMAGE, package=PACKAGE)


@pytest.mark.parametrize(
    "package",
    [
        "giornata",
        "giornata[train]",
        "http://wheels.example/giornata-0.1.0-py3-none-any.whl",
        "https://wheels.example/other-0.1.0-py3-none-any.whl",
        "https://wheels.example/giornata-0.1.0-py3-none-any.whl --extra-index-url x",
    ],
)
def test_package_url_that_is_no_https_url_of_our_wheel_is_refused(package):
    with pytest.raises(ValidationError, match="package"):
        SkyPilotOptions(package=package)


def test_the_setup_installs_the_wheel_at_the_url_and_asks_no_index_for_our_name(tmp_path):
    wheel = tmp_path / "giornata-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("giornata.py", "")
        archive.writestr("giornata-0.1.0.dist-info/METADATA", METADATA)
        archive.writestr("giornata-0.1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("giornata-0.1.0.dist-info/RECORD", "")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    # An index that is asked is an error here. What the wheel needs is left out: it would come from the index.
    alone = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    env = {"PATH": f"{venv / 'bin'}:{os.environ['PATH']}", **alone}
    done = subprocess.run(
        ["bash", "-c", setup_of(wheel.as_uri())], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (venv / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "giornata.py").exists()


def test_package_installation_does_not_see_the_node_key(tmp_path):
    pip = tmp_path / "pip"
    pip.write_text("#!/bin/sh\nenv\n")
    pip.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GIORNATA_NODE_KEY": "gk_secret", "GIORNATA_FLEET": "gpu"}
    done = subprocess.run(["bash", "-c", setup_of(PACKAGE)], env=env, capture_output=True, text=True, check=True)
    assert "GIORNATA_FLEET=gpu" in done.stdout
    assert "gk_secret" not in done.stdout
