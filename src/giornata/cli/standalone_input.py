"""The input of `giornata train --standalone`, checked before anything is computed."""

import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from giornata.blobs import open_blobs
from giornata.cli.jobs.download import folder_faults
from giornata.cli.jobs.inputs.base_models import TIMEOUT, Hub, model_faults
from giornata.cli.jobs.inputs.picture_folders import caption_ending_of, lengths_of, read_class_pictures, with_prior
from giornata.cli.jobs.options.spec_options import with_model_option
from giornata.cli.jobs.options.standalone_options import StandaloneOptions
from giornata.cli.settings import Settings, s3_credentials_of, storage_url
from giornata.cli.system import RandomNames, SystemClock
from giornata.client.storage.training_folder import TrainingFolder, read_training_folder, read_training_subsets
from giornata.client.trust import trusted
from giornata.control.jobs.submission.length_faults import prompts_of
from giornata.domain.errors import Fault, InvalidInput, collecting
from giornata.protocol.project.webhooks import key_of
from giornata.standalone.run_request import RunRequest, make_request, spec_faults
from giornata.standalone.storage import RunStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneInput:
    """The checked input of a standalone run."""

    fields: dict[str, Any]
    folder: TrainingFolder
    class_folder: TrainingFolder | None
    storage: RunStorage
    out: Path
    webhook: tuple[str, str] | None
    folder_name: str
    """The name of the folder with the pictures, after which the results are named."""


def check_input(
    options: StandaloneOptions,
    settings: Settings,
    fields: Callable[[], dict[str, Any]],
    *,
    others: Iterable[Fault] = (),
) -> StandaloneInput:
    """Check the input. Raises InvalidInput with all faults of the spec, the pictures, the storage, the folder and the
    webhook, and `others`."""
    faults = list(others)
    given: dict[str, Any] = {}
    folder: TrainingFolder | None = None
    storage: RunStorage | None = None
    with collecting(faults):
        given = with_prior(options.class_directory, fields())
        faults += [*with_model_option(_spec_faults(given, options), given), *_model_faults(given)]
        faults += lengths_of(given).of_texts(prompts_of(given))
    with collecting(faults):
        folder = _folder(options, given, minimum=settings.min_pictures)
    class_folder: TrainingFolder | None = None
    with collecting(faults):
        minimum = settings.min_pictures
        class_folder = read_class_pictures(options.class_directory, options.class_subsets, given, minimum=minimum)
    with collecting(faults):
        storage = _storage(options.checkpoint_to, settings)
    faults += [*_output_faults(options.output), *_webhook_faults(options.webhook, settings.webhook_secret)]
    if faults or folder is None or storage is None or options.output is None or options.folder is None:
        raise InvalidInput(faults)
    webhook = (options.webhook, settings.webhook_secret) if options.webhook and settings.webhook_secret else None
    return StandaloneInput(
        fields=given,
        folder=folder,
        class_folder=class_folder,
        storage=storage,
        out=options.output,
        webhook=webhook,
        folder_name=options.folder.resolve().name,
    )


def _folder(options: StandaloneOptions, spec: dict[str, Any], *, minimum: int) -> TrainingFolder:
    prompt, check = spec.get("instance_prompt"), lengths_of(spec).of_captions
    if options.subsets:
        return read_training_subsets(options.subsets, instance_prompt=prompt, minimum=minimum, captions_check=check)
    if options.directory is None:
        raise InvalidInput([Fault(where="DIR", message="no pictures are named", hint="name their folder")])
    return read_training_folder(
        options.directory,
        instance_prompt=prompt,
        minimum=minimum,
        caption_ending=caption_ending_of(spec),
        captions_check=check,
    )


def _spec_faults(fields: dict[str, Any], options: StandaloneOptions) -> list[Fault]:
    return spec_faults(fields, own_classes=options.class_directory is not None or bool(options.class_subsets))


def _model_faults(fields: dict[str, Any]) -> list[Fault]:
    with httpx.Client(timeout=TIMEOUT, verify=trusted()) as http:
        return list(model_faults(fields, hub=Hub(environment=os.environ, http=http), shares_files=lambda: True))


def _storage(place: str | None, settings: Settings) -> RunStorage:
    if place is None:
        hint = "a folder that outlives this machine, or s3://BUCKET/PREFIX"
        raise InvalidInput([Fault(where="--checkpoint-to", message="is missing", hint=hint)])
    try:
        # Nothing is ever signed for others: every byte is moved by this process.
        blobs = open_blobs(
            storage_url(place),
            signing_key=secrets.token_bytes(32),
            base_url="http://localhost",
            clock=SystemClock(),
            s3_credentials=s3_credentials_of(settings),
        )
    except InvalidInput as error:
        raise InvalidInput(
            [Fault(where="--checkpoint-to", message=each.message, hint=each.hint) for each in error.faults]
        ) from None
    except OSError as error:
        message = f"{place} cannot be used: {error.strerror}"
        raise InvalidInput(
            [Fault(where="--checkpoint-to", message=message, hint="name a folder to write to")]
        ) from None
    return RunStorage(blobs=blobs, name=place.split("?", 1)[0])


def _output_faults(out: Path | None) -> list[Fault]:
    if out is None:
        return [Fault(where="--output", message="is missing", hint="such as: -o my-lora")]
    if faults := folder_faults(out):
        return faults
    out.mkdir(parents=True, exist_ok=True)
    return []


def _webhook_faults(url: str | None, secret: str | None) -> list[Fault]:
    if url is None:
        return []
    faults = []
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        faults.append(Fault(where="--webhook", message=f"{url!r} is not a URL", hint="https://host/path"))
    if secret is None:
        hint = "give --webhook-secret, or set GIORNATA_WEBHOOK_SECRET"
        return [
            *faults,
            Fault(where="--webhook-secret", message="is missing: requests to the webhook are signed", hint=hint),
        ]
    try:
        key_of(secret)
    except ValueError as error:
        hint = "whsec_ and 24 or more random bytes in base64, or any long text"
        faults.append(Fault(where="--webhook-secret", message=str(error), hint=hint))
    return faults


def request_of(plan: StandaloneInput) -> RunRequest:
    """Compare the plan with what the storage holds, and store the record. Raises InvalidInput and Unavailable."""
    names = RandomNames()
    stored = plan.storage.read_job()
    request = make_request(
        plan.fields,
        plan.folder,
        plan.class_folder,
        stored=stored,
        folder_name=plan.folder_name,
        draw_seed=names.seed,
        draw_id=lambda: names.new("job"),
    )
    if stored is None:
        plan.storage.write_job(request.record)
    return request
