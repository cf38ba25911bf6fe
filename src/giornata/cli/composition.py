"""Puts a control plane together from settings."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from giornata.api.settings import ApiSettings
from giornata.blobs import open_blobs
from giornata.cli.connection import SERVER_FILE
from giornata.cli.settings import Settings
from giornata.cli.storage import s3_credentials_of
from giornata.cli.world import RandomNames, SandboxedPictures, SystemClock
from giornata.control.context import Context, Foundations
from giornata.control.install import install, signing_key
from giornata.control.policy import Policy
from giornata.control.ports.sealing import NoSealer, Sealer
from giornata.domain.errors import Fault, InvalidInput, Unavailable
from giornata.domain.health import HealthPolicy
from giornata.domain.money import MICRO_USD
from giornata.domain.reaping import ReapPolicy
from giornata.pictures.inspection import PictureLimits
from giornata.store.database import Database, open_store
from giornata.store.migrate import is_current, migrate

NODE_KEY_FILE = "node.key"
SECRETS_KEY_FILE = "secrets.key"


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """A control plane over its storage.

    `first_admin_key` is given once, at the very first start. `check_schema` raises Unavailable when another server
    has brought the database to a schema that is not this one's.
    """

    context: Context
    first_admin_key: str | None
    check_schema: Callable[[], None]


def policy_of(settings: Settings) -> Policy:
    """The operator's numbers."""
    return Policy(
        lease_s=settings.lease_s,
        max_at_risk_s=settings.max_at_risk_s,
        min_pictures=settings.min_pictures,
        max_pictures=settings.max_pictures,
        upload_url_s=settings.upload_url_s,
        garbage_after_s=settings.garbage_after_s,
        # What this server says that its own nodes cost is no lie of theirs.
        max_node_price_micro_usd_per_hour=round(
            max(settings.max_node_price_usd_per_hour, settings.price_usd_per_hour) * MICRO_USD
        ),
        health=HealthPolicy(
            burst_failures=settings.quarantine_failures,
            burst_s=settings.quarantine_within_s,
            cool_down_s=settings.quarantine_s,
            new_on_probation=settings.new_machines == "probation",
        ),
        reap=ReapPolicy(hourly_share=settings.reallocations_share),
    )


def api_settings_of(settings: Settings) -> ApiSettings:
    """How the HTTP layer behaves."""
    return ApiSettings(
        base_url=settings.public_url,
        allowed_origins=settings.cors_origins,
        streams_per_key=settings.streams_per_key,
        waiting_claims_per_key=settings.waiting_claims_per_key,
    )


def make_directory(directory: Path, *, named: str) -> Path:
    """`directory`, made if need be and writable. Raises InvalidInput that names the setting."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"cannot make {directory}: {error.strerror}"
        raise InvalidInput([Fault(where=named, message=message, hint="choose another directory")]) from None
    if not os.access(directory, os.W_OK | os.X_OK):
        message = f"{directory} is not writable"
        raise InvalidInput([Fault(where=named, message=message, hint="choose another directory")])
    return directory


@contextmanager
def open_house(settings: Settings, *, base_url: Callable[[], str]) -> Iterator[House]:
    """Open (and migrate, and at the first start install) the storage that `settings` name.

    `base_url` tells where this server is reached; only signed URLs of the filesystem need it. Raises Unavailable
    when another server has the database, and InvalidInput for settings that cannot be used.
    """
    data = make_directory(settings.data, named="data")
    database = settings.database or f"sqlite:///{data / 'giornata.db'}"
    migrate(database)
    store = open_store(database)
    try:
        clock, names, pictures = SystemClock(), RandomNames(), _pictures(settings)
        # The signing key lies in the database, and signed URLs need it: installing comes before blobs are opened.
        foundations = Foundations(store=store, clock=clock, names=names)
        first_admin_key = install(foundations)
        blobs = open_blobs(
            settings.blobs or f"file://{(data / 'blobs').resolve()}",
            signing_key=signing_key(foundations),
            base_url=base_url,
            clock=clock,
            s3_credentials=s3_credentials_of(settings),
        )
        context = Context(
            store=store,
            blobs=blobs,
            clock=clock,
            names=names,
            pictures=pictures,
            policy=policy_of(settings),
            sealer=_sealer(settings, database),
        )
        check_schema = partial(_check_schema, store)
        yield House(context=context, first_admin_key=first_admin_key, check_schema=check_schema)
    finally:
        store.close()


def _sealer(settings: Settings, database: str) -> Sealer:
    """By the setting; an embedded installation, whose database lies beside it, makes itself a key."""
    from giornata.cli.sealing import FernetSealer, key_in, new_key

    file = settings.data / SECRETS_KEY_FILE
    key = settings.secrets_key or key_in(file)
    if key is None and database.startswith("sqlite"):
        key = new_key()
        write_private(file, key + "\n")
    return NoSealer() if key is None else FernetSealer(key)


def _check_schema(store: Database) -> None:
    with store.read() as tx:
        if not is_current(tx.connection):
            raise Unavailable("the database's schema is not the one that this version was made for")


def _pictures(settings: Settings) -> SandboxedPictures:
    policy = policy_of(settings)
    limits = PictureLimits(
        max_pixels=policy.max_picture_pixels,
        min_side_px=policy.min_picture_side_px,
        max_file_bytes=policy.max_picture_bytes,
    )
    return SandboxedPictures(limits=limits)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    aside = path.with_suffix(path.suffix + ".new")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    aside.replace(path)


def write_server_file(data: Path, url: str) -> None:
    """Say where the server on this data directory listens, so that other commands find it."""
    write_private(data / SERVER_FILE, json.dumps({"url": url, "pid": os.getpid()}) + "\n")
