"""The command line starts without the heavy libraries."""

import subprocess
import sys

HEAVY = ("torch", "diffusers", "transformers", "peft", "PIL", "numpy", "sqlalchemy", "fastapi", "boto3")


def test_the_command_line_loads_no_tensor_picture_or_server_library():
    code = f"import sys, giornata.cli; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
