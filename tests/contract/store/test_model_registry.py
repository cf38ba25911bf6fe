"""The registry of models: what a file has to be, what a name means, and what nodes are given."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import pytest
from tests.fixtures.model_files import SD15_BASE, SD15_LORA, SDXL_BASE, SDXL_LORA, VAE, model_file
from tests.fixtures.users import ANN, ANN_ADMIN, BOB, NODE, ROOT, have, move_in

from giornata.control.access.keep_secrets import set_secret
from giornata.control.attempts.claiming.known_node import note_checks
from giornata.control.context import Context
from giornata.control.models.downloads import downloads_of
from giornata.control.models.register import add_model, change_model, list_models, remove_model
from giornata.control.models.resolve import bring_models, resolve_models
from giornata.control.ports.model_registry import RemoteModel
from giornata.control.storage.collect import collect
from giornata.domain.errors import Forbidden, InvalidInput, NotFound, Unavailable
from giornata.domain.generation.model_kinds import ModelFamily, ModelKind
from giornata.protocol.models import AddModel, ChangeModel
from giornata.protocol.node.node_checks import NodeChecks, NodeFigures
from giornata.protocol.node.work import NodeInfo
from giornata.protocol.project.secrets import SetSecret

BASE, LORA = model_file(SDXL_BASE), model_file(SDXL_LORA)
BASE_15, LORA_15 = model_file(SD15_BASE), model_file(SD15_LORA)
URL = "https://example.org/a.safetensors"
URN = "urn:air:sdxl:lora:civitai:123@456"


@dataclass
class FakeSources:
    """Files by what names them outside. `asked` holds the name and the token of each look-up, `away` the sources that
    fail."""

    files: dict[str, bytes] = field(default_factory=dict)
    said: dict[str, RemoteModel] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    away: set[str] = field(default_factory=set)
    opened: int = 0

    def find(self, reference: Any, *, token: str | None, where: str) -> RemoteModel:
        name = getattr(reference, "url", None) or getattr(reference, "file", None) or "civitai"
        self.asked.append((name, token))
        if name in self.away:
            raise Unavailable("away")
        return self.said.get(name, RemoteModel(name=name, url=name))

    @contextmanager
    def open(self, model: RemoteModel, *, token: str | None, where: str) -> Iterator[Iterator[bytes]]:
        self.opened += 1
        body = self.files[model.url]
        yield iter([body[at : at + 100] for at in range(0, len(body), 100)])


@dataclass(frozen=True)
class SpecModel:
    """A model in a spec, as `named_models` yields it."""

    where: str
    role: str
    use: dict[str, Any]


def place(role: str, name: str, where: str = "", **use: Any) -> SpecModel:
    return SpecModel(where=where or f"spec.{role}", role=role, use={"name": name, **use})


@pytest.fixture
def sources() -> FakeSources:
    return FakeSources()


@pytest.fixture
def rig(ctx: Context, sources: FakeSources) -> Context:
    move_in(ctx)
    return replace(ctx, model_sources=sources)


def add(rig: Context, name: str, content: bytes, caller=ANN, **more: Any):
    return add_model(rig, caller, AddModel(name=name, sha256=have(rig, caller, content), **more))


def resolved(rig: Context, *places: SpecModel, project_id: str = "ann") -> list[str]:
    faults = bring_models(rig, project_id, places)
    with rig.store.begin() as tx:
        faults += resolve_models(tx, rig, project_id, places)
    return [str(fault) for fault in faults]


# ---- the registry


def test_uploaded_file_gets_a_name_kind_family_and_size_from_its_header(rig):
    added = add(rig, "my-base", BASE, pinned=True)
    assert (added.kind, added.family, added.size_bytes) == (ModelKind.BASE, ModelFamily.SDXL, len(BASE))
    assert (added.sha256, added.source, added.reference, added.pinned) == (sha256(BASE).hexdigest(), "blob", "", True)
    assert add(rig, "my-base", BASE) == added  # the same request again changes nothing
    assert [each.name for each in list_models(rig, ANN, None, 10).items] == ["my-base"]
    assert list_models(rig, BOB, None, 10).items == ()


def test_name_that_is_taken_by_another_file_is_refused(rig):
    add(rig, "mine", BASE)
    with pytest.raises(InvalidInput, match="mine is another model"):
        add(rig, "mine", LORA)


@pytest.mark.parametrize(
    ("content", "more", "words"),
    [
        (b"PK\x03\x04" + b"x" * 50, {}, "zip archive"),
        (BASE[:-1], {}, "its header promises"),
        (BASE, {"kind": "lora"}, "is a base file, not a lora"),
        (LORA_15, {"family": "sdxl"}, "is of the family SD 1.5, not SDXL"),
        (model_file({"unet.a.lora_A.weight": (4, 8)}), {}, "does not tell the family"),
    ],
)
def test_upload_that_is_not_what_it_should_be_is_refused(rig, content, more, words):
    with pytest.raises(InvalidInput, match=words):
        add(rig, "x", content, **more)
    assert list_models(rig, ANN, None, 10).items == ()


def test_family_that_a_file_does_not_tell_may_be_said(rig):
    added = add(rig, "x", model_file({"unet.a.lora_A.weight": (4, 8)}), family="sd15")
    assert (added.kind, added.family) == (ModelKind.LORA, ModelFamily.SD15)
    assert add(rig, "vae", model_file(VAE)).family is None


def test_bytes_that_were_not_uploaded_cannot_be_named(rig):
    with pytest.raises(InvalidInput, match="there are no bytes"):
        add_model(rig, ANN, AddModel(name="x", sha256="0" * 64))


def test_reference_is_fetched_once_and_becomes_the_projects_own(rig, sources):
    sources.files[URL] = LORA
    added = add_model(rig, ANN, AddModel(name="style", reference=URL))
    again = add_model(rig, ANN, AddModel(name="style-2", reference=URL, sha256=added.sha256))
    assert (added.sha256, again.sha256, sources.opened) == (sha256(LORA).hexdigest(), added.sha256, 1)
    with rig.store.read() as tx:
        found = downloads_of(tx, rig, "ann", [added.sha256, "f" * 64])
    assert set(found) == {added.sha256} and found[added.sha256].size_bytes == len(LORA)


@pytest.mark.parametrize(
    ("body", "said", "words"),
    [
        (b"\x80\x02}q" + b"x" * 400, {}, "is pickled"),
        (LORA, {"name": "a.ckpt"}, "only .safetensors files"),
        (LORA, {"sha256": "0" * 64}, f"hashes to {sha256(LORA).hexdigest()}, not 0000"),
        (LORA, {"size_bytes": len(LORA) + 1}, f"has {len(LORA)} bytes where its source said {len(LORA) + 1}"),
        (LORA, {"size_bytes": len(LORA) - 1}, f"sends more than {len(LORA) - 1} bytes"),
        (LORA, {"size_bytes": 2**40}, "at most"),
        (LORA + b"x", {}, "its header promises"),
        (LORA_15, {"family": ModelFamily.SDXL}, "is of the family SD 1.5, not SDXL"),
    ],
    ids=["pickle", "name", "changed bytes", "short", "long", "too large", "more than the header", "family"],
)
def test_fetched_file_that_is_not_what_was_said_is_refused(rig, sources, body, said, words):
    sources.files[URL] = body
    sources.said[URL] = RemoteModel(**{"name": "a.safetensors", "url": URL, **said})
    with pytest.raises(InvalidInput, match=words):
        add_model(rig, ANN, AddModel(name="x", reference=URL))
    assert list_models(rig, ANN, None, 10).items == ()


def test_fetch_that_somebody_else_is_at_is_told_to_wait(rig, sources):
    sources.files[URL] = LORA
    first = sources.open

    @contextmanager
    def open_and_ask_again(model, **more):
        with pytest.raises(Unavailable, match="the server is fetching this model"):
            add_model(rig, ANN, AddModel(name="other", reference=URL))
        with first(model, **more) as chunks:
            yield chunks

    sources.open = open_and_ask_again
    assert add_model(rig, ANN, AddModel(name="x", reference=URL)).name == "x"


def test_text_that_names_no_source_is_refused(rig):
    for text, words in (
        ("nonsense", "names no file of a source"),
        ("urn:air:sdxl:lora:elsewhere:1@2", "is not a URN of Civitai"),
        ("https://x/y.ckpt", "only .safetensors files"),
    ):
        with pytest.raises(InvalidInput, match=words):
            add_model(rig, ANN, AddModel(name="x", reference=text))


def test_operators_model_is_shared_with_all_projects_and_a_tenant_shares_nothing(rig):
    shared = add(rig, "base", BASE, caller=ROOT, shared=True)
    own = add(rig, "secret", LORA, caller=ROOT)
    assert [each.name for each in list_models(rig, BOB, None, 10).items] == ["base"]
    with rig.store.read() as tx:
        assert set(downloads_of(tx, rig, "bob", [shared.sha256, own.sha256])) == {shared.sha256}
    for caller in (ANN, ANN_ADMIN):
        with pytest.raises(Forbidden):
            add(rig, "mine", LORA, caller=caller, shared=True)
    with pytest.raises(NotFound):
        remove_model(rig, BOB, "base")


def test_models_are_pinned_and_removed_by_their_project_alone(rig):
    add(rig, "mine", BASE)
    assert change_model(rig, ANN, "mine", ChangeModel(pinned=True)).pinned
    with pytest.raises(NotFound):
        change_model(rig, BOB, "mine", ChangeModel(pinned=True))
    assert remove_model(rig, ANN, "mine").name == "mine"
    with pytest.raises(NotFound):
        remove_model(rig, ANN, "mine")
    with pytest.raises(Forbidden):
        list_models(rig, NODE, None, 10)


def test_list_goes_on_behind_its_cursor(rig, clock):
    for number in range(3):
        clock.advance_s(1)
        add(rig, f"m{number}", model_file(SDXL_BASE, filler=bytes([number])))
    first = list_models(rig, ANN, None, 2)
    assert [each.name for each in first.items] == ["m2", "m1"]
    assert [each.name for each in list_models(rig, ANN, first.next, 2).items] == ["m0"]


def test_tokens_of_a_project_are_used_for_their_source_alone(rig, sources):
    sealed = replace(rig, sealer=Plain())
    sources.files["civitai"] = sources.files[URL] = LORA
    set_secret(sealed, ANN_ADMIN, "CIVITAI_TOKEN", SetSecret(value="civitai-token"))
    set_secret(sealed, ANN_ADMIN, "OTHER", SetSecret(value="other-token"))
    for number, (reference, secret) in enumerate(((URN, None), (URL, None), (URN, "OTHER"))):
        add_model(sealed, ANN, AddModel(name=f"m{number}", reference=reference, token_secret=secret))
    add_model(sealed, BOB, AddModel(name="m", reference=URN))
    assert sources.asked == [
        ("civitai", "civitai-token"),
        (URL, None),
        ("civitai", "other-token"),
        ("civitai", None),
    ]
    with pytest.raises(InvalidInput, match="has no secret NONE"):
        add_model(sealed, ANN, AddModel(name="m9", reference=URN, token_secret="NONE"))


class Plain:
    seals = True

    def seal(self, text: str) -> str:
        return text

    def unseal(self, sealed: str) -> str:
        return sealed


# ---- names in a spec


def test_names_become_sha256s_whatever_they_are(rig, sources):
    sources.files |= {URL: LORA, "civitai": model_file(SDXL_LORA, filler=b"c")}
    add(rig, "my-base", BASE)
    add(rig, "shared-vae", model_file(VAE), caller=ROOT, shared=True)
    uploaded = have(rig, ANN, model_file(SDXL_LORA, filler=b"u"))
    places = [
        place("base", "my-base"),
        place("vae", "shared-vae"),
        place("lora", URL, "spec.loras.0"),
        place("lora", URN, "spec.loras.1"),
        place("lora", "mine", "spec.loras.2", sha256=uploaded),
    ]
    assert resolved(rig, *places) == []
    assert [each.use["sha256"] for each in places] == [
        sha256(content).hexdigest()
        for content in (
            BASE,
            model_file(VAE),
            LORA,
            model_file(SDXL_LORA, filler=b"c"),
            model_file(SDXL_LORA, filler=b"u"),
        )
    ]
    assert [each.use["name"] for each in places] == ["my-base", "shared-vae", URL, URN, "mine"]
    assert resolved(rig, *places) == [] and sources.opened == 2  # the second order fetches nothing


def test_model_that_only_the_engine_can_load_stays_a_name(rig):
    add_model(rig, ANN, AddModel(name="hub-base", reference="own/er", family="sdxl"))
    places = [place("base", "hub-base"), place("vae", "other/vae"), place("controlnet", "/models/canny")]
    assert resolved(rig, *places) == []
    assert [(each.use["name"], each.use.get("sha256")) for each in places] == [
        ("own/er", None),
        ("other/vae", None),
        ("/models/canny", None),
    ]


def test_all_faults_of_all_names_come_at_once(rig, sources):
    add(rig, "my-base", BASE)
    add(rig, "old-lora", LORA_15)
    add(rig, "my-lora", LORA)
    sources.files[URL] = b"<html>login</html>" * 20
    found = resolved(
        rig,
        place("base", "my-bse"),
        place("vae", "my-base"),
        place("lora", "job_unknown", "spec.loras.0"),
        place("lora", URL, "spec.loras.1"),
        place("lora", "own/er", "spec.loras.2"),
        place("lora", "x.ckpt", "spec.loras.3"),
        place("embedding", "urn:nonsense", "spec.embeddings.0"),
        place("lora", "mine", "spec.loras.4", sha256="0" * 64),
    )
    for words in (
        "spec.base: there is no model my-bse (did you mean my-base?)",
        "spec.vae: my-base is a base, and a vae is needed here",
        "spec.loras.0: this project has no training job job_unknown",
        "spec.loras.1: is a web page",
        "spec.loras.2: own/er is a whole repository, and a lora is one file",
        "spec.loras.3: x.ckpt is a .ckpt file",
        "spec.embeddings.0: urn:nonsense is not a URN of Civitai",
        "spec.loras.4.sha256: there are no bytes",
    ):
        assert any(fault.startswith(words) for fault in found), (words, found)


def test_source_that_fails_hides_no_fault_that_was_found_before_it(rig, sources):
    sources.files[URL] = b"<html>login</html>" * 20
    sources.away.add("civitai")
    broken, away = place("lora", URL, "spec.loras.0"), place("lora", URN, "spec.loras.1")
    (fault,) = bring_models(rig, "ann", [broken, away])
    assert fault.where == "spec.loras.0"
    with pytest.raises(Unavailable, match=r"spec\.loras\.1: away"):
        bring_models(rig, "ann", [away])


def test_lora_of_another_family_than_its_base_is_a_fault(rig):
    for name, content in (("xl", BASE), ("xl-lora", LORA), ("old", BASE_15), ("old-lora", LORA_15)):
        add(rig, name, content)
    wrong = resolved(rig, place("base", "xl", "spec.model"), place("lora", "old-lora", "spec.loras.0"))
    assert wrong == [
        "spec.loras.0: is of the family SD 1.5, and the base model is of SDXL "
        "(choose files that were made for the base model's family)"
    ]
    entry = [
        place("base", "xl", "spec.model"),
        place("lora", "xl-lora", "spec.loras.0"),
        place("base", "old", "spec.pictures.3.model"),
        place("lora", "old-lora", "spec.pictures.3.loras.0"),
    ]
    assert resolved(rig, *entry) == []
    assert resolved(rig, place("base", "some/hub", "spec.model"), entry[1], place("lora", "old-lora")) == []


def test_shared_model_gives_way_to_one_of_the_project(rig):
    add(rig, "base", BASE, caller=ROOT, shared=True)
    own = add(rig, "base", model_file(SDXL_BASE, filler=b"o"))
    places = place("base", "base"), place("base", "base")
    assert resolved(rig, places[0]) == [] and resolved(rig, places[1], project_id="bob") == []
    assert places[0].use["sha256"] == own.sha256 != places[1].use["sha256"]


def known_node(rig: Context, store_bytes: int | None, number: int = 1) -> None:
    node = NodeInfo(node_id=f"node_0000000{number}", machine_id=f"m-{number}", name="n")
    note_checks(rig, NODE, NodeChecks(node=node, figures=NodeFigures(model_store_bytes=store_bytes)))


def test_model_larger_than_any_nodes_disk_is_a_fault(rig, clock):
    add(rig, "my-base", BASE)
    assert resolved(rig, place("base", "my-base")) == []  # no node yet: nobody knows
    known_node(rig, len(BASE) - 1)
    (fault,) = resolved(rig, place("base", "my-base"))
    assert f"has {len(BASE)} bytes; no connected node keeps more than {len(BASE) - 1}" in fault
    known_node(rig, None, 2)
    assert resolved(rig, place("base", "my-base")) == []
    known_node(rig, len(BASE), 2)
    assert resolved(rig, place("base", "my-base")) == []
    clock.advance_s(rig.policy.node_gone_after_s + 1)
    known_node(rig, len(BASE) - 1)
    assert len(resolved(rig, place("base", "my-base"))) == 1


# ---- garbage


def test_model_that_an_order_named_by_reference_goes_when_it_is_unused_and_others_stay(rig, sources, clock):
    sources.files |= {URL: LORA, "civitai": model_file(SDXL_LORA, filler=b"c")}
    add(rig, "kept", BASE)
    assert resolved(rig, place("lora", URL), place("lora", URN)) == []
    change_model(rig, ANN, URN, ChangeModel(pinned=True))
    clock.advance_s(rig.policy.unused_models_kept_s - 1)
    assert resolved(rig, place("lora", URL)) == []
    clock.advance_s(2)
    collect(rig)
    assert {each.name for each in list_models(rig, ANN, None, 10).items} == {"kept", URL, URN}
    clock.advance_s(rig.policy.unused_models_kept_s)
    collect(rig)
    assert {each.name for each in list_models(rig, ANN, None, 10).items} == {"kept", URN}
    with rig.store.read() as tx:
        assert tx.uploads.blobs("ann", [sha256(LORA).hexdigest()]) == {}
        assert len(tx.uploads.blobs("ann", [sha256(BASE).hexdigest()])) == 1
