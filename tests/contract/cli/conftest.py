"""The command line against a real server."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fixtures.served import Served, serving
from typer.testing import CliRunner

from giornata.cli.main import app


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What a command printed, and how it ended."""

    status: int
    output: str
    errors: str

    @property
    def json(self) -> dict:
        """The last line, as one object."""
        return json.loads(self.output.strip().splitlines()[-1])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as server:
        yield server


@pytest.fixture
def run(served: Served, tmp_path: Path) -> Callable[..., CommandResult]:
    """Run a command as the project's admin."""

    def call(*arguments: str, key: str | None = None, typed: str | None = None) -> CommandResult:
        environment = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HF_HUB_OFFLINE": "1"}
        before = ["--url", served.url, "--api-key", key or served.keys.admin, "--data", str(tmp_path / "data")]
        done = CliRunner().invoke(app, [*before, *arguments], input=typed, env=environment)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return CommandResult(status=done.exit_code, output=done.stdout, errors=done.stderr)

    return call
