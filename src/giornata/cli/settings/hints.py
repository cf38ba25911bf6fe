"""The next command for a person to type, with the options that say which server it is about."""

import shlex
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

import typer

REPEATED = ("url", "data", "config")
"""Options before a command's name. A key is never repeated: it would stay on the screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """The running command: its options of `REPEATED`, and `local` for the installation on this machine."""

    given: Mapping[str, str] = field(default_factory=dict)
    local: bool = False


_running: ContextVar[_Running] = ContextVar("_running", default=_Running())  # noqa: B039  (it is frozen)


def note_given(context: typer.Context) -> None:
    """Remember the options before the command's name until the command has ended."""
    root = context.find_root()
    given = {name: str(root.params[name]) for name in REPEATED if root.params.get(name) is not None}
    token = _running.set(_Running(given=given))
    root.call_on_close(lambda: _running.reset(token))


def note_local(local: bool) -> None:
    """Remember whether the running command talks to the installation on this machine."""
    _running.set(replace(_running.get(), local=local))


def is_local() -> bool:
    """Return True when the running command talks to the installation on this machine."""
    return _running.get().local


def given() -> Mapping[str, str]:
    """The options before the running command's name that say which server it is about."""
    return _running.get().given


def giornata(*words: str, data: str | None = None) -> str:
    """`giornata --data DIR follow JOB`: the words, behind the options that the running command was given.

    `data` stands for a data directory that the command itself was given, behind its name.
    """
    named = dict(given())
    if data is not None:
        named = {name: value for name, value in named.items() if name != "url"} | {"data": data}
    options = [word for name in REPEATED if name in named for word in (f"--{name}", named[name])]
    return shlex.join(["giornata", *options, *words])
