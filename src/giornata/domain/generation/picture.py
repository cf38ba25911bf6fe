"""The states of a picture of an order, and when a picture that could not be drawn is given up."""

from enum import StrEnum

from giornata.domain.jobs.reasons import BLAME, Blame, Reason
from giornata.domain.visible_text import visible_line

ORDER_KINDS = frozenset({"generate", "grid", "preprocess"})
"""Kinds of job that are orders of pictures. No node gets such a job; nodes get leases of its pictures."""
LEASE_KIND = "generate"
"""The kind by which the health of a machine that draws is known, whatever the orders' kinds."""
PICTURES_LIKE_A_JOB = 512
"""Pictures that ask for a node as one queued job does: about what a node draws in an hour."""
MOST_PICTURES = 64
"""Pictures of one lease at most."""
NODE_KINDS: tuple[str, ...] = ("train", LEASE_KIND)
"""The kinds that a node takes unless it is told others."""
FAILED_AGAIN_MS = 600_000
"""A machine that failed to draw a picture is not asked for it again for so long."""
KEYS_BEGIN_WITH = "pictures/"
MOST_ERROR_CHARS = 500


def offered_kind(kind: str) -> str:
    """Return the kind that a node offers when it takes jobs of this kind."""
    return LEASE_KIND if kind in ORDER_KINDS else kind


class PictureState(StrEnum):
    """The states of a picture. The last three are terminal."""

    QUEUED = "queued"
    LEASED = "leased"
    PAUSED = "paused"  # its order waits for money
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class SafetyPolicy(StrEnum):
    """The fate of a picture that the safety checker takes for unsafe. The strictest policy is last."""

    OFF = "off"  # no picture is checked, unless its order asks for it
    FLAG = "flag"  # the picture is kept, with a flag
    BLOCK = "block"  # the picture is not uploaded


def strictest(*policies: SafetyPolicy) -> SafetyPolicy:
    """Return the strictest of these policies."""
    return max(policies, key=tuple(SafetyPolicy).index)


OPEN = (PictureState.QUEUED, PictureState.LEASED, PictureState.PAUSED)


def halved(pictures: int) -> int:
    """Return how many pictures may share a lease after a lease of so many has crashed."""
    return max(1, pictures // 2)


def is_undecided(reason: Reason) -> bool:
    """Return True when the reason leaves open whether the picture or the machine is to blame."""
    return BLAME[reason] is Blame.UNDECIDED


def is_fruitless(reason: Reason) -> bool:
    """Return True when a lease came to nothing through its machine, which may have been through its pictures."""
    return reason is Reason.LEASE_EXPIRED or BLAME[reason] is Blame.MACHINE


def fails_at_once(reason: Reason) -> bool:
    """Return True when no node can draw the picture."""
    return BLAME[reason] is Blame.JOB


def error_words(message: str, reason: Reason) -> str:
    """Return what a picture's owner reads of its failure: one short line that commands no terminal."""
    line = visible_line(" ".join(message.split()))
    shown = line if len(line) <= MOST_ERROR_CHARS else f"{line[: MOST_ERROR_CHARS - 1]}…"
    return f"{shown} ({reason})"


def picture_key(project_id: str, lease: str, sha256: str) -> str:
    """Return the key of a picture's bytes in storage. No row says where they lie."""
    return f"{lease_folder(project_id, lease)}{sha256}"


def project_of_key(key: str) -> str:
    """Return the project whose bytes lie at this key of storage: those of a picture, or of any other file."""
    parts = parts_of_key(key)
    return key.partition("/")[0] if parts is None else parts[0]


def parts_of_key(key: str) -> tuple[str, str, str] | None:
    """Return the project, the lease and the sha256 of a picture's key; None for the key of anything else."""
    if not key.startswith(KEYS_BEGIN_WITH):
        return None
    parts = key.removeprefix(KEYS_BEGIN_WITH).split("/")
    return (parts[0], parts[1], parts[2]) if len(parts) == len(("project", "lease", "sha256")) else None


def lease_folder(project_id: str, lease: str) -> str:
    """Return the prefix of the keys of all pictures that a lease drew for a project."""
    return f"{KEYS_BEGIN_WITH}{project_id}/{lease}/"
