"""Command groups whose commands are imported when they are used.

The index of a group has each command's name, module and help: `--help` and shell completion import no command.
"""

import importlib
from collections import UserDict
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from giornata.cli.examples import EXAMPLES, as_epilog


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A command: its name, the module that registers it, and the first line of its help."""

    name: str
    module: str
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Commands that stand together in the help."""

    title: str
    entries: tuple[Entry, ...]


class LazyCommands(UserDict[str, Any]):
    """Commands by name, in the order of the index. A lookup imports the command's module."""

    def __init__(self, entries: Sequence[Entry], *, prefix: str) -> None:
        super().__init__({entry.name: entry for entry in entries})
        self._prefix = prefix

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        if isinstance(found, Entry):
            found = self.data[name] = _load(found, self._prefix + name)
        return found


def _load(entry: Entry, path: str) -> Any:
    """The command as its module registers it, with its examples. `path` is all that is typed before its options."""
    host = typer.Typer(rich_markup_mode=None)
    importlib.import_module(entry.module).register(host)
    command = get_group(host).commands[entry.name]
    _add_examples(command, path)
    return command


def _add_examples(command: Any, path: str) -> None:
    if path in EXAMPLES:
        command.epilog = as_epilog(EXAMPLES[path])
    if isinstance(command, TyperGroup) and not isinstance(command, LazyGroup):
        for name, each in command.commands.items():
            _add_examples(each, f"{path} {name}")


class LazyGroup(TyperGroup):
    """A group that knows its commands' help without importing them. A subclass says which commands."""

    sections: ClassVar[tuple[Section, ...]]
    prefix: ClassVar[str] = ""
    """The words before the names of these commands, with a space at the end."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        entries = [entry for section in self.sections for entry in section.entries]
        self.commands: MutableMapping[str, Any] = LazyCommands(entries, prefix=self.prefix)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of the index."""
        del ctx
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands with their help, section by section."""
        del ctx
        width = max(len(name) for name in self.commands)
        for section in self.sections:
            with formatter.section(section.title):
                formatter.write_dl([(each.name.ljust(width), each.help) for each in section.entries])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Names and options that begin so. Commands with a name and a help stand in for the real ones."""
        stand_ins = TyperGroup(name=self.name, params=self.params)
        for section in self.sections:
            for each in section.entries:
                stand_ins.add_command(TyperCommand(name=each.name, help=each.help))
        command, ctx.command = ctx.command, stand_ins
        try:
            return stand_ins.shell_complete(ctx, incomplete)
        finally:
            ctx.command = command
