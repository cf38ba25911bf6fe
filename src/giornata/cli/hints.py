"""The next command for a person to type, with the options that say which server it is about."""

import shlex
from collections.abc import Mapping

import click

REPEATED = ("url", "data", "config")
"""Options before a command's name. A key is never repeated: it would stay on the screen."""
LOCAL = "giornata.local"


def giornata(*words: str, data: str | None = None) -> str:
    """`giornata --data DIR follow JOB`: the words, behind the options that the running command was given.

    `data` stands for a data directory that the command itself was given, behind its name.
    """
    named = dict(given())
    if data is not None:
        named = {name: value for name, value in named.items() if name != "url"} | {"data": data}
    options = [word for name in REPEATED if name in named for word in (f"--{name}", str(named[name]))]
    return shlex.join(["giornata", *options, *words])


def note_local(local: bool) -> None:
    """Remember whether the running command talks to the installation on this machine."""
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[LOCAL] = local


def is_local() -> bool:
    """Whether the running command talks to the installation on this machine."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(LOCAL))


def given() -> Mapping[str, object]:
    """The options before the running command's name that say which server it is about."""
    context = click.get_current_context(silent=True)
    if context is None:
        return {}
    params = context.find_root().params
    return {name: params[name] for name in REPEATED if params.get(name) is not None}
