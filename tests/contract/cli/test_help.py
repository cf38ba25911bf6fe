"""The help: quick because commands are imported when used, true to the commands, and with examples that parse."""

import shlex
import subprocess
import sys

import pytest
import typer
from tests.fixtures.served import a_dataset
from typer.testing import CliRunner

from giornata.cli.command_index import COMMANDS, PRETRAIN_COMMANDS
from giornata.cli.examples import EXAMPLES
from giornata.cli.main import app
from giornata.cli.options import job_ids

ROOT = typer.main.get_command(app)
INDEXED = [
    (words, entry)
    for sections, words in ((COMMANDS, ()), (PRETRAIN_COMMANDS, ("pretrain",)))
    for section in sections
    for entry in section.entries
]
NEEDED = {"giornata", "typer", "click", "shellingham", "annotated_doc", "typing_extensions"}
TO_READ_OPTIONS = {"pydantic", "pydantic_core", "annotated_types", "typing_inspection"}
"""What typer itself imports before it calls a command."""
OWN_MODULES = {
    "giornata",
    "giornata.cli",
    "giornata.cli.main",
    "giornata.cli.command_index",
    "giornata.cli.lazy_group",
    "giornata.cli.examples",
}


def found(words):
    """The command that these words name."""
    command = ROOT
    for word in words:
        command = command.commands[word]
    return command


def callable_commands(command=ROOT, path=()):
    """All words of each command that does something, groups that do included."""
    below = getattr(command, "commands", None)
    if below is None or (path and command.invoke_without_command):
        yield " ".join(path)
    for name, each in (below or {}).items():
        yield from callable_commands(each, (*path, name))


@pytest.mark.parametrize(("words", "entry"), INDEXED, ids=lambda each: getattr(each, "name", ""))
def test_the_index_says_what_the_command_says_of_itself(words, entry):
    assert entry.help == found((*words, entry.name)).get_short_help_str(limit=200)


def test_each_command_stands_once_in_the_help_under_the_title_of_its_section():
    lines = CliRunner().invoke(app, ["--help"]).stdout.splitlines()
    for section in COMMANDS:
        start = lines.index(f"{section.title}:")
        listed = [line.split()[0] for line in lines[start + 1 : start + 1 + len(section.entries)]]
        assert listed == [entry.name for entry in section.entries]


@pytest.mark.parametrize(
    ("words", "libraries", "modules"),
    [
        (["--help"], set(), set()),
        (["--version"], set(), set()),
        (["nowhere"], TO_READ_OPTIONS, set()),
        (["pretrain", "--help"], TO_READ_OPTIONS, {"giornata.cli.pretraining", "giornata.cli.pretraining.pretrain"}),
    ],
)
def test_help_imports_no_command_and_no_library_that_it_does_not_need(words, libraries, modules):
    code = (
        "import sys; before = set(sys.modules)\n"
        "from giornata.cli import main\n"
        f"sys.argv = ['giornata', *{words!r}]\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*sorted(set(sys.modules) - before), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = done.stderr.splitlines()[-1].split()
    foreign = {name.split(".")[0] for name in loaded if not name.startswith("_")} - sys.stdlib_module_names
    assert foreign <= NEEDED | libraries
    assert {name for name in loaded if name.startswith("giornata")} == OWN_MODULES | modules


def test_each_command_has_one_to_three_examples_and_no_example_is_without_its_command():
    assert set(EXAMPLES) == set(callable_commands())
    assert all(1 <= len(examples) <= 3 for examples in EXAMPLES.values())


@pytest.mark.parametrize("path", EXAMPLES)
def test_the_help_shows_the_examples_as_they_are_written(path):
    shown = CliRunner().invoke(app, [*path.split(), "--help"])
    for line in "\n".join(EXAMPLES[path]).splitlines():
        assert line in shown.stdout


@pytest.mark.parametrize(
    ("path", "example"), [(path, each) for path, examples in EXAMPLES.items() for each in examples]
)
def test_each_example_is_understood_by_the_command_that_it_is_of(path, example):
    program, *words = shlex.split(example.replace("\\\n", " ").partition(" < ")[0])
    assert program == "giornata"
    context = ROOT.make_context("giornata", words)
    named = []
    while isinstance(context.command, typer.core.TyperGroup) and (rest := [*context._protected_args, *context.args]):
        name, command, rest = context.command.resolve_command(context, rest)
        named.append(name)
        context = command.make_context(name, rest, parent=context)
    assert " ".join(named) == path


def complete(line):
    """What bash is offered at the end of this line."""
    return subprocess.run(
        [sys.executable, "-c", "from giornata.cli.main import app; app(prog_name='giornata')"],
        check=True,
        capture_output=True,
        text=True,
        env={"_GIORNATA_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))},
    ).stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("giornata pre", ["preprocess", "presets", "pretrain"]),
        ("giornata pretrain e", ["encode", "eval"]),
        ("giornata jobs --st", ["--state"]),
        ("giornata jobs --state qu", ["queued"]),
        ("giornata train --preset s", ["subject", "style"]),
        ("giornata --data /nowhere job job_", []),
    ],
)
def test_the_shell_completes_commands_options_and_values(line, offered):
    assert complete(line) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_printed_for_bash_zsh_and_fish(shell):
    done = CliRunner().invoke(app, [], prog_name="giornata", env={"_GIORNATA_COMPLETE": f"source_{shell}"})
    assert done.exit_code == 0
    assert "_GIORNATA_COMPLETE" in done.stdout


def test_job_ids_are_completed_from_the_server_with_their_names(served, tmp_path):
    client = served.client(served.keys.admin)
    spec = {"model": "some/model", "dataset": a_dataset(client, tmp_path).id, "instance_prompt": "a sks dog"}
    job = client.submit(spec | {"max_train_steps": 5}, name="dog")
    line = ["--url", served.url, "--api-key", served.keys.admin, "job"]
    with ROOT.make_context("giornata", line) as context:
        assert job_ids(context, "job_") == [(job.id, "dog, queued")]
        assert job_ids(context, "x") == []
