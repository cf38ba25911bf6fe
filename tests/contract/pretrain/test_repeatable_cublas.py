"""What torch wants to see in the environment before it multiplies on a GPU and promises to repeat itself."""

import os
import subprocess
import sys

from giornata.diffusion.determinism import let_libraries_repeat

NAME = "CUBLAS_WORKSPACE_CONFIG"


def test_it_is_set_unless_somebody_has_set_it() -> None:
    empty: dict[str, str] = {}
    let_libraries_repeat(empty)
    assert empty == {NAME: ":4096:8", "MKL_CBWR": "AUTO,STRICT"}
    chosen = {NAME: ":16:8"}
    let_libraries_repeat(chosen)
    assert chosen[NAME] == ":16:8"


def test_an_evaluation_sets_it_for_itself() -> None:
    """It asks torch for deterministic kernels, and nobody starts it with that environment."""
    program = (
        "import os, sys, torch; from giornata.pretrain.evaluate import main\n"
        "main(['no such file', '--report', '/dev/null'])\n"
        f"assert torch.are_deterministic_algorithms_enabled(); sys.stdout.write(os.environ['{NAME}'])"
    )
    without = {name: value for name, value in os.environ.items() if name != NAME}
    told = subprocess.run([sys.executable, "-c", program], env=without, capture_output=True, text=True, check=True)
    assert told.stdout.endswith(":4096:8")
