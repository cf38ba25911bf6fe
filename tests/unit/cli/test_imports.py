"""The command line starts without what the command does not need."""

import json
import subprocess
import sys

import pytest

HEAVY = (
    *("torch", "diffusers", "transformers", "peft", "accelerate", "safetensors", "PIL", "numpy", "ray", "pyarrow"),
    *("sqlalchemy", "alembic", "psycopg", "fastapi", "starlette", "uvicorn", "boto3", "botocore"),
)
"""Libraries of tensors, pictures, databases, servers and storage."""
SECOND = ("pydantic", "httpx", "rich", "yaml")
"""Libraries that a command needs, and the list of commands does not."""
PARTS = tuple(f"giornata.{name}" for name in ("agent", "blobs", "client.client", "standalone", "store", "api"))
"""Parts of the package that `train` imports when it runs, if at all."""
REPORT = "import atexit, json, sys; atexit.register(lambda: print(json.dumps(list(sys.modules)), file=sys.stderr))"


def loaded_by(*words: str) -> list[str]:
    """Return the modules that `giornata` with these words has imported at its end."""
    code = f"{REPORT}; sys.argv[1:] = {list(words)!r}; import giornata.cli; giornata.cli.main()"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "Usage" in done.stdout
    return list(json.loads(done.stderr))


@pytest.mark.parametrize(
    ("words", "most_modules", "absent"),
    [
        (("--help",), 10, (*HEAVY, *SECOND, *PARTS)),
        (("train", "--help"), 150, (*HEAVY, "yaml", *PARTS)),
    ],
    ids=["root", "train"],
)
def test_the_help_of_a_command_loads_few_modules_and_no_heavy_library(
    words: tuple[str, ...], most_modules: int, absent: tuple[str, ...]
) -> None:
    loaded = loaded_by(*words)
    own = [name for name in loaded if name.partition(".")[0] == "giornata"]
    assert sorted(set(absent) & set(loaded)) == []
    assert len(own) <= most_modules, f"{len(own)} modules of the package, {most_modules} expected at most: {own}"


def test_the_client_is_imported_when_it_is_first_used_and_an_unknown_name_is_an_error():
    code = (
        "import sys, giornata.client as package; before = 'giornata.client.client' in sys.modules; "
        "package.Client; after = 'giornata.client.client' in sys.modules; "
        "print(before, after, hasattr(package, 'Server'))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True", "False"]
