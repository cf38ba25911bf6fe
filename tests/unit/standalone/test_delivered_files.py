"""What a standalone run leaves: results for the user to share, and private parts for nobody else."""

import os
import stat

import pytest

from giornata.blobs import open_blobs
from giornata.cli.system import SystemClock
from giornata.standalone.platform import deliver


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_results_have_the_rights_that_the_user_gives_to_files(tmp_path, mode):
    made = tmp_path / "made"
    made.write_bytes(b"weights")
    made.chmod(0o600)
    (tmp_path / "out").mkdir()
    deliver({"lora.safetensors": made}, tmp_path / "out", mode=mode)
    assert stat.S_IMODE((tmp_path / "out" / "lora.safetensors").stat().st_mode) == mode


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_checkpoints_and_pictures_in_the_storage_are_closed(tmp_path, umask):
    place = tmp_path / "runs"
    place.mkdir(mode=0o755)
    before = os.umask(umask)
    try:
        blobs = open_blobs(place.as_uri(), signing_key=bytes(32), base_url="http://localhost", clock=SystemClock())
        blobs.write("checkpoints/one", [b"weights"])
    finally:
        os.umask(before)
    kept = place / "objects"
    assert {stat.S_IMODE((place / name).stat().st_mode) for name in ("objects", "aside", "uploads")} == {0o700}
    assert stat.S_IMODE((kept / "checkpoints" / "one").stat().st_mode) == 0o600
    assert stat.S_IMODE(place.stat().st_mode) & 0o700 == 0o700
