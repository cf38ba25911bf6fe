"""A webhook's target and signing secrets, which lie encrypted in the store.

The sealed text names its project and webhook, so that a row which was moved in the database cannot be opened.
"""

import base64
import json
import secrets as random_bytes
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from giornata.control.ports.sealing import Sealer
from giornata.control.ports.user_queries.webhook_store import WebhookRecord
from giornata.domain.errors import Unavailable
from giornata.protocol.project.webhook_endpoints import WebhookFormat
from giornata.protocol.project.webhooks import SECRET_PREFIX

SECRET_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedTarget:
    """The encrypted part of a webhook's row. Secrets are empty for the formats that are not signed."""

    target: str = field(repr=False)
    secret: str = field(default="", repr=False)
    old_secret: str = field(default="", repr=False)

    def rotated(self) -> "SealedTarget":
        """Return the target with a new secret; the present secret becomes the old one."""
        return replace(self, secret=new_secret(), old_secret=self.secret)

    def seal(self, sealer: Sealer, *, project_id: str, webhook_id: str) -> str:
        """Return the encrypted text. Raises Unavailable where there is no key to seal with."""
        return sealer.seal(json.dumps([project_id, webhook_id, self.target, self.secret, self.old_secret]))

    def valid_secrets(self, webhook: WebhookRecord, *, at_ms: int) -> Sequence[str]:
        """Return the secrets that sign now: two during the overlap of a rotation."""
        overlaps = webhook.old_secret_until_ms is not None and at_ms < webhook.old_secret_until_ms
        return [each for each in (self.secret, self.old_secret if overlaps else "") if each]


def new_secret() -> str:
    """Return a new signing secret in the form of Standard Webhooks."""
    return SECRET_PREFIX + base64.b64encode(random_bytes.token_bytes(SECRET_BYTES)).decode()


def unseal(sealer: Sealer, webhook: WebhookRecord) -> SealedTarget:
    """Return what the webhook's row holds encrypted. Raises Unavailable when the server's key does not open it."""
    project_id, webhook_id, *held = json.loads(sealer.unseal(webhook.sealed))
    if (project_id, webhook_id) != (webhook.project_id, webhook.id):
        raise Unavailable(f"the target of webhook {webhook.id} was sealed for another webhook")
    target, secret, old_secret = held
    return SealedTarget(target=target, secret=secret, old_secret=old_secret)


def shown_target(format: WebhookFormat, target: str) -> str:
    """Return what may be shown of a target: URLs of Slack and Discord are secrets, and so is any query."""
    if format is WebhookFormat.MAIL:
        return target
    url = urlsplit(target)
    begins = f"{url.scheme}://{url.netloc}"
    if format is WebhookFormat.STANDARD:
        return begins + url.path + ("?…" if url.query else "")
    return f"{begins}/…"
