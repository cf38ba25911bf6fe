"""The model card of a downloaded job, with the chain of its signed record at the end.

The node writes the card before the record exists: the record holds the hash of the card. So the chain is added when
the results are downloaded, below a mark, and everything above the mark is as the node wrote it.
"""

import hashlib
from collections.abc import Collection, Iterator
from itertools import groupby
from pathlib import Path

from giornata.protocol.provenance import Provenance, ProvenanceAudit, ProvenanceCheckpoint, SignedProvenance

CARDS = "README*.md"
MARK = b"\n<!-- giornata: the signed record of this LoRA -->\n"
MOST_ROWS = 60


def card_as_written(content: bytes) -> bytes:
    """Return a card as the node wrote it, without the chain of its record."""
    return content.split(MARK, 1)[0]


def restore_cards(folder: Path, sha256s: Collection[str]) -> None:
    """Remove the chain from those cards in a folder that have one of these hashes without it."""
    for file in folder.glob(CARDS):
        content = file.read_bytes()
        plain = card_as_written(content)
        if plain != content and hashlib.sha256(plain).hexdigest() in sha256s:
            _replace(file, plain)


def save_record(signed: SignedProvenance, card: Path) -> Path:
    """Write the record beside a card, and its chain into the card. Return the record's file.

    A record that is there already is replaced: audits are decided long after a job has ended.
    """
    content = signed.model_dump_json(indent=2).encode()
    record = card.with_name(f"provenance-{signed.provenance.job_id}.json")
    _replace(record, content)
    page = "\n".join(_chain(signed, record.name, hashlib.sha256(content).hexdigest()))
    _replace(card, card_as_written(card.read_bytes()) + MARK + page.encode())
    return record


def _replace(file: Path, content: bytes) -> None:
    aside = file.with_name(f"{file.name}.part")
    aside.write_bytes(content)
    aside.replace(file)


def _chain(signed: SignedProvenance, name: str, sha256: str) -> Iterator[str]:
    found = signed.provenance
    yield "\n## Who made it\n"
    yield f"Job `{found.job_id}` made this LoRA. The record `{name}` beside this page is signed by its server"
    yield f"(sha256 `{sha256}`, public key `{signed.public_key}`)."
    yield f"Verify it with `giornata verify {name} --public-key KEY --lora FILE`; ask the operator for the key."
    if found.suspect:
        yield "\n**In doubt:** an audit contradicts a machine that made part of the result."
    yield "\n| | sha256 |\n|---|---|"
    hashes = {"spec": found.spec_sha256, "data": found.data_sha256, "base": found.base_sha256}
    yield from (f"| {of} | `{value}` |" for of, value in hashes.items() if value is not None)
    yield from _checkpoint_rows(found)
    yield from _audit_rows(found.audits)


def _checkpoint_rows(found: Provenance) -> Iterator[str]:
    """Yield a table with a row for each machine's checkpoints in a row."""
    runs = [list(run) for _, run in groupby(found.checkpoints, key=lambda each: (each.attempt, each.machine))]
    if runs:
        yield "\n| checkpoints | machine | sha256 of the last |\n|---|---|---|"
    yield from (_checkpoint_row(run) for run in runs[:MOST_ROWS])
    yield from _more(len(runs))


def _checkpoint_row(run: list[ProvenanceCheckpoint]) -> str:
    first, last = run[0].step, run[-1].step
    steps = f"step {last}" if first == last else f"{len(run)}, steps {first} to {last}"
    return f"| {steps} | {_plain(run[-1].machine) or 'unknown'} | `{run[-1].sha256}` |"


def _audit_rows(audits: tuple[ProvenanceAudit, ...]) -> Iterator[str]:
    if not audits:
        yield "\nNo stretch of it was run again by another machine."
        return
    yield "\n| audited steps | machine | result | run again by |\n|---|---|---|---|"
    for each in audits[:MOST_ROWS]:
        again = ", ".join(map(_plain, each.repeated_by)) or "nobody"
        yield f"| {each.from_step + 1} to {each.to_step} | {_plain(each.machine)} | {each.state} | {again} |"
    yield from _more(len(audits))


def _more(rows: int) -> Iterator[str]:
    if rows > MOST_ROWS:
        yield f"\n{rows - MOST_ROWS} more are in the record."


def _plain(text: str) -> str:
    """Make a machine's name fit a cell of a table: nothing in it is Markdown or HTML."""
    return "".join(each if each.isalnum() or each in "~-_.:@ " else "?" for each in text).replace("_", r"\_")
