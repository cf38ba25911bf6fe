"""The commands of `giornata models`: add, list, coverage, pin and remove."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from giornata.cli.options import JsonFlag, check_message, settings_of
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import reporting
from giornata.cli.ui.text import ago, size
from giornata.client import Client
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.generation.model_header import SUFFIX, name_faults
from giornata.domain.generation.model_kinds import ModelFamily, ModelKind
from giornata.protocol.models import AddModel, RegisteredModel

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the model.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the command group `models` to `app`."""
    models = typer.Typer(no_args_is_help=True, help="Register model files for drawing and training.")
    models.command("add")(add_model)
    models.command("list")(list_models)
    models.command("coverage")(show_coverage)
    models.command("pin")(pin_model)
    models.command("remove")(remove_model)
    app.add_typer(models, name="models")


def add_model(
    context: typer.Context,
    name: Name,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL|HUB|URN",
            help="A .safetensors file here, its URL, owner/name:file.safetensors or owner/name on the hub, or "
            "Civitai's URN.",
            show_default=False,
        ),
    ],
    kind: Annotated[
        ModelKind | None,
        typer.Option(help="Kind that the file must have. Default: the server finds it out.", show_default=False),
    ] = None,
    family: Annotated[
        ModelFamily | None,
        typer.Option(help="Family of the model, if the file does not tell it.", show_default=False),
    ] = None,
    pin: Annotated[bool, typer.Option("--pin", help="Keep the model also when it is not used.")] = False,
    shared: Annotated[
        bool,
        typer.Option("--shared", help="Register the model for all projects of the installation. Only for operators."),
    ] = False,
    token_secret: Annotated[
        str | None,
        typer.Option(
            metavar="SECRET",
            help="Secret of the project with a token for the source. Default: HF_TOKEN or CIVITAI_TOKEN.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Register a model file under a name. The server checks the file, and itself fetches a URL, hub file or URN."""
    with reporting(as_json, see=("models", "list")) as out:
        said = {"name": name, "kind": kind, "family": family, "pinned": pin, "shared": shared}
        given = {key: value for key, value in {**said, "token_secret": token_secret}.items() if value}
        file = Path(source)
        is_file = file.is_file()
        faults = name_faults(source, where=source)
        if not is_file and (file.suffix == SUFFIX and file.is_absolute()):
            faults.append(Fault(where=source, message="there is no such file", hint="check the path"))
        if faults:
            raise InvalidInput(faults)
        reference = {"sha256": "0" * 64} if is_file else {"reference": source}
        check_message(AddModel, **{key: (_option(key), value) for key, value in {**given, **reference}.items()})
        with connect(settings_of(context)) as client:
            added = _add(client, name, file if is_file else source, given)
            out.say(f"{added.name}  {_words(added)}")
            out.hint(f"  use it   {_use_of(added)}")
            out.hint(f"  all      {giornata('models', 'list')}")
            out.result(added)


def _use_of(model: RegisteredModel) -> str:
    """Return the command that draws with the model, or what a spec says of it."""
    options = {ModelKind.BASE: ("--model", model.name), ModelKind.LORA: ("--model", "MODEL", "--lora", model.name)}
    if model.kind in options:
        return giornata("generate", "PROMPT", *options[model.kind])
    return f"name {model.name} in the spec of an order, as docs/reference/generation.md tells"


def _option(field: str) -> str:
    return {"name": "NAME", "reference": "FILE|URL|HUB|URN", "sha256": "FILE"}.get(
        field, f"--{field.replace('_', '-')}"
    )


def _add(client: Client, name: str, source: Path | str, given: Mapping[str, object]) -> RegisteredModel:
    if isinstance(source, str):
        return client.add_model(AddModel.model_validate({**given, "name": name, "reference": source}))
    (sent,) = client.upload_files([source])
    return client.add_model(AddModel.model_validate({**given, "name": name, "sha256": sent.sha256}))


def list_models(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List the models of the project and those that all projects share, newest first."""
    with reporting(as_json, see=("models", "list")) as out, connect(settings_of(context)) as client:
        models = list(client.models())
        rows = [
            (each.name, each.kind, each.family or "", size(each.size_bytes), _marks(each), ago(each.used_at))
            for each in models
        ]
        if rows or not out.live:
            out.table(("name", "kind", "family", "size", "kept", "used"), rows)
        else:
            out.hint(f"No models. Register one with: {giornata('models', 'add', 'NAME', 'FILE')}")
        out.result({"items": [each.model_dump(mode="json") for each in models]})


def show_coverage(context: typer.Context, name: Name, as_json: JsonFlag = False) -> None:
    """Show how many of the connected nodes hold a model, and where: GPU memory, host memory or disk."""
    with reporting(as_json, see=("models", "list")) as out, connect(settings_of(context)) as client:
        found = client.model_coverage(name)
        row = (found.name, found.nodes, found.gpu, found.host, found.disk, found.fetching)
        out.table(("name", "nodes", "GPU memory", "host memory", "disk", "arriving"), [tuple(map(str, row))])
        out.result(found)


def pin_model(
    context: typer.Context,
    name: Name,
    off: Annotated[bool, typer.Option("--off", help="Unpin the model.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Keep a model also when it is not used."""
    with reporting(as_json, see=("models", "list")) as out, connect(settings_of(context)) as client:
        changed = client.pin_model(name, pinned=not off)
        out.say(f"{changed.name} is {'pinned' if changed.pinned else 'not pinned'}")
        out.result(changed)


def remove_model(context: typer.Context, name: Name, as_json: JsonFlag = False) -> None:
    """Remove a model from the project's registry."""
    with reporting(as_json, see=("models", "list")) as out, connect(settings_of(context)) as client:
        removed = client.remove_model(name)
        out.say(f"{removed.name} is removed")
        out.result({"name": removed.name, "removed": True})


def _words(model: RegisteredModel) -> str:
    return f"{model.kind}{f' for {model.family}' if model.family else ''}, {size(model.size_bytes)}"


def _marks(model: RegisteredModel) -> str:
    marks = (("pinned", model.pinned), ("shared", model.shared), ("not allowed", model.allowed is False))
    return ", ".join(word for word, holds in marks if holds)
