"""Hold model files that a job needs, and an order's pictures, so that no collector takes them while the job waits."""

from collections.abc import Iterator, Mapping

from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import MODEL_ROLE, JobRecord, OrderFile
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.generation.checks.named_models import named_models, uploaded_pictures
from giornata.protocol.project.admin import ROOT_PROJECT
from giornata.protocol.training.model_names import is_single_file

BASE_SHA256 = "pretrained_model_sha256"
"""The field of a training job's spec that names the bytes of its base."""
PICTURE_ROLE = "picture:"
SHORT = 22
"""Hexadecimal digits of a hash that tell the files of one order apart, in a column of 32 characters."""


def hold_files(tx: Transaction, job: JobRecord) -> None:
    """Hold the models and the uploaded pictures of an order in the transaction that queues it.

    Models that are removed from the registry meanwhile stay until the order has ended. Raises InvalidInput when a
    file is gone.
    """
    models = {use["sha256"]: each.where for each in named_models(job.spec) if (use := each.use).get("sha256")}
    pictures = {sha256: f"spec.{where}" for where, sha256 in uploaded_pictures(job.spec)}
    if not models and not pictures:
        return
    own = tx.uploads.touch_blobs(job.project_id, sorted({*models, *pictures}), at_ms=job.created_at_ms)
    rest = sorted(models.keys() - own)
    shared = sorted(tx.models.shared_blobs(rest)) if rest else []
    held = tx.uploads.touch_blobs(ROOT_PROJECT, shared, at_ms=job.created_at_ms) if shared else set()
    if faults := [*_missing(models, own | held), *_missing(pictures, own)]:
        raise InvalidInput(faults)
    files = [_file(MODEL_ROLE, sha256, job.project_id if sha256 in own else ROOT_PROJECT) for sha256 in models]
    files += [_file(PICTURE_ROLE, sha256, job.project_id) for sha256 in pictures]
    tx.submission.add_order_files(job.id, files)


def hold_base(tx: Transaction, job: JobRecord, sha256: str) -> None:
    """Hold the base of a training job, if the server has the file with this sha256.

    Raises InvalidInput when the file of a registered base is gone. Any other base is found by its name.
    """
    project_id = job.project_id
    if sha256 not in tx.uploads.touch_blobs(project_id, [sha256], at_ms=job.created_at_ms):
        project_id = ROOT_PROJECT
        shared = sorted(tx.models.shared_blobs([sha256]))
        if not shared or sha256 not in tx.uploads.touch_blobs(project_id, shared, at_ms=job.created_at_ms):
            if not is_single_file(job.spec["pretrained_model_name_or_path"]):
                raise InvalidInput(_missing({sha256: "spec.pretrained_model_name_or_path"}, set()))
            return
    tx.submission.add_order_files(job.id, [_file(MODEL_ROLE, sha256, project_id)])


def _file(role: str, sha256: str, project_id: str) -> OrderFile:
    return OrderFile(role=role + sha256[:SHORT], project_id=project_id, sha256=sha256)


def _missing(wanted: Mapping[str, str], there: set[str]) -> Iterator[Fault]:
    for sha256, where in wanted.items():
        if sha256 not in there:
            message = f"there are no bytes with sha256 {sha256}"
            yield Fault(where=where, message=message, hint="add the file again, and submit the order anew")
