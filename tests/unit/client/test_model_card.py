"""The chain of a record at the end of a model card."""

from datetime import UTC, datetime
from pathlib import Path

from giornata.client.archives.model_card import MARK, card_as_written, restore_cards, save_record
from giornata.client.archives.provenance import file_sha256
from giornata.domain.jobs.audits import AuditState
from giornata.domain.jobs.job import JobState
from giornata.protocol.provenance import Provenance, ProvenanceAudit, ProvenanceCheckpoint, SignedProvenance

AT = datetime(2026, 11, 1, tzinfo=UTC)


def checkpoint(step: int, machine: str, attempt: int = 1) -> ProvenanceCheckpoint:
    return ProvenanceCheckpoint(step=step, sha256=f"{step:064}", attempt=attempt, machine=machine, committed_at=AT)


def signed(**changes: object) -> SignedProvenance:
    made = {
        "job_id": "job_1",
        "state": JobState.SUCCEEDED,
        "suspect": False,
        "spec_sha256": "5" * 64,
        "base_sha256": "b" * 64,
        "checkpoints": (checkpoint(4, "operator~ab"), checkpoint(8, "operator~ab"), checkpoint(12, "own_1|`", 2)),
        "audits": (
            ProvenanceAudit(
                from_step=4,
                to_step=8,
                sha256="0" * 64,
                state=AuditState.CONFIRMED,
                machine="operator~ab",
                repeated_by=("operator~cd",),
            ),
        ),
        "files": (),
        "issued_at": AT,
    }
    return SignedProvenance(provenance=Provenance.model_validate(made | changes), public_key="KEY", signature="x")


def test_the_chain_names_hashes_machines_and_audits(tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    card.write_text("# LoRA\n")
    record = save_record(signed(), card)
    said = card.read_text()
    assert SignedProvenance.model_validate_json(record.read_bytes()) == signed()
    assert file_sha256(record) in said
    assert f"| spec | `{'5' * 64}` |" in said and f"| base | `{'b' * 64}` |" in said
    assert "| data |" not in said
    assert f"| 2, steps 4 to 8 | operator~ab | `{8:064}` |" in said
    assert f"| step 12 | own\\_1?? | `{12:064}` |" in said, "a name ends no cell and no code span"
    assert "| 5 to 8 | operator~ab | confirmed | operator~cd |" in said
    assert "In doubt" not in said


def test_a_newer_record_replaces_the_chain_and_says_what_is_in_doubt(tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    card.write_text("# LoRA\n")
    save_record(signed(), card)
    save_record(signed(suspect=True, audits=()), card)
    content = card.read_bytes()
    assert content.count(MARK) == 1
    assert b"**In doubt:**" in content and b"No stretch of it was run again" in content
    assert card_as_written(content) == b"# LoRA\n"


def test_only_cards_of_this_job_lose_their_chain(tmp_path: Path) -> None:
    ours, others = tmp_path / "README.md", tmp_path / "README-abc.md"
    ours.write_text("ours")
    others.write_text("others")
    sha256 = file_sha256(ours)
    for card in (ours, others):
        save_record(signed(), card)
    restore_cards(tmp_path, {sha256})
    assert ours.read_text() == "ours"
    assert MARK in others.read_bytes()
