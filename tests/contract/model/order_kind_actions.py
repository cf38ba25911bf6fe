"""Orders besides plain ones: grids, annotations, pictures that wait for theirs; and nodes that say what they hold.

Nodes that annotate are others than those that draw, but for one that does both.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from tests.contract.model.calls import DIED, HeldPictures
from tests.contract.model.model_rig import PROJECTS, ROOT, NodePlace, Row, owner
from tests.contract.model.picture_actions import BASES_BY_MODEL, BY_MODEL, MOST, PLACES_THAT_DRAW, PictureActions

from giornata.control.end_of_life.apply_retention import apply_retention
from giornata.control.end_of_life.retention import set_retention
from giornata.control.jobs.submission.submit import submit
from giornata.control.pictures.await_annotations import keep_annotation
from giornata.control.storage.uploads import request_attempt_uploads
from giornata.domain.errors import GiornataError, InvalidInput, OverBudget
from giornata.protocol.generation.annotators import ANNOTATION_ENTRY
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.node.held_models import HeldModels, HeldTier
from giornata.protocol.node.work import CommitCache
from giornata.protocol.project.end_of_life import SetRetention
from giornata.protocol.uploads import FileToUpload, UploadRequest

DAY_S = 86_400
MOST_AT_ONCE = 7  # by which `claim_pictures` asks for up to 8 pictures, with a reply that arrives
PHOTO = hashlib.sha256(b"a picture").hexdigest()  # of each project's data set, while it has one
PLACES_THAT_ANNOTATE = (
    NodePlace(number=20, machine="machine-6", kinds=("preprocess",)),
    NodePlace(number=21, machine="machine-4", kinds=("generate", "preprocess")),
    NodePlace(number=22, machine="machine-3@ann", project="ann", kinds=("preprocess",)),
)


class OrderKindActions(PictureActions):
    """Actions of those who order grids and annotations, of nodes that annotate, and of nodes that hold models."""

    # ---- users

    def place_grid(self, a: int, b: int) -> None:
        """Each combination of the values is one cell, and so is each repeat."""
        animals, styles, repeats = ["fox", "owl", "elk"][: 1 + a % 3], ["ink", "oil"][: 1 + b % 2], 1 + a // 8 % 2
        axes = [{"slot": "animal", "values": animals}, {"slot": "style", "values": styles}]
        spec = {"model": "some/model", "prompt": "a {animal} in {style}", "axes": axes, "height": 64, "width": 64}
        spec |= {"num_images_per_prompt": repeats, "num_inference_steps": 1 + a % 3}
        made = self._place("grid", spec, a, b)
        if made is not None and self.exact:
            cells = [json.dumps(_differs(row)) for row in self._rows().values() if row.order_id == made]
            assert len(cells) == len(animals) * len(styles) * repeats, f"{spec} became {cells}"
            assert len(set(cells)) * repeats == len(cells), f"{spec} became {cells}"

    def place_annotations(self, a: int, b: int) -> None:
        annotator = ("canny", *BY_MODEL)[a % 3]
        spec = {"images": [PHOTO], "annotator": annotator, "annotator_params": {}}
        self._place("preprocess", spec, a, b)

    def place_by_annotations(self, a: int, b: int) -> None:
        """Pictures that follow annotations by models: by one of two annotators, or by both."""
        names = (("depth",), ("pose",), BY_MODEL, ("canny", "depth"))[a % 4]
        uses = [{"name": "some/net", "image": PHOTO, "annotator": name} for name in names]
        spec = {"model": "some/model", "prompts": ["a fox"], "num_images_per_prompt": 1 + b % 3, "controlnets": uses}
        self._place("generate", spec | {"height": 64, "width": 64, "num_inference_steps": 2}, a, b)

    def _place(self, kind: str, spec: dict[str, Any], a: int, b: int) -> str | None:
        project = PROJECTS[a % len(PROJECTS)]
        request = SubmitJob(kind=kind, spec=spec, priority=b % 2)
        outcome = self.call(lambda: self._submitted(project, request))
        if outcome is DIED:
            self._find_new_jobs()
        elif isinstance(outcome, InvalidInput):
            self._check_refusal(project, outcome)
        elif not isinstance(outcome, OverBudget):
            self.actors.orders.append((outcome[0].id, project))
            return str(outcome[0].id)
        return None

    def _submitted(self, project: str, request: SubmitJob) -> Any:
        try:
            return submit(self.ctx, owner(project), request, None)
        except InvalidInput as refusal:
            return refusal

    def _check_refusal(self, project: str, refusal: InvalidInput) -> None:
        """An order is refused for a picture that its project has no more, or because nobody would annotate it."""
        since_ms = self.rig.clock.now_ms() - self.ctx.policy.node_gone_after_s * 1000
        for fault in refusal.faults:
            lost = PHOTO in fault.message
            assert lost or "no node for jobs of kind preprocess is connected" in fault.message, fault
            if self.exact and not lost:
                alive = [row for row in self.checker.look().nodes if row.last_seen_at_ms >= since_ms]
                able = [row for row in alive if "preprocess" in row.kinds and row.project_id in {"default", project}]
                assert not [row for row in able if not row.draining], f"{fault}, but {able}"

    # ---- nodes

    def claim_annotations(self, a: int, b: int) -> None:
        """One of the claims' replies in eight is lost."""
        place, request_id = PLACES_THAT_ANNOTATE[a % len(PLACES_THAT_ANNOTATE)], self._new_request()
        most = MOST[b // 2 % len(MOST)]
        self.actors.picture_requests.append((place, request_id, most))
        self._ask_for_pictures(place, request_id, most, lost=b % 8 == 0, again=b % 3 == 0)

    def claim_by_models(self, a: int, b: int) -> None:
        """A node says what it holds, and may be wrong: it holds models that nobody asks for, or that it has lost. It
        may fetch what the server hints at, or say that it does."""
        place, request_id = PLACES_THAT_DRAW[a % len(PLACES_THAT_DRAW)], self._new_request()
        bases = sorted({row.base_key for row in self._rows().values()}) or ["none"]
        held = HeldModels(version=b, added={HeldTier.DISK: tuple(f"{n:064x}" for n in range(b % 3))})
        said = {
            "held_models": tuple(bases[: b % 4]),
            "held_version": b,
            "held": held if a % 2 else None,
            "fetching": bases[a % len(bases)] if b % 5 == 0 else None,
        }
        self._ask_for_pictures(place, request_id, MOST[a % len(MOST)], lost=False, again=b % 3 == 0, **said)

    def annotate(self, a: int, b: int) -> None:
        """A node that annotates puts the annotation into the cache: then every picture that waited for it goes on."""
        waiting = [each for each in self.actors.picture_leases if each.wanted_annotations]
        if not waiting:
            return
        held = waiting[-1 - a % min(len(waiting), 4)]
        key = held.wanted_annotations[b % len(held.wanted_annotations)]
        data = f"{key}{' other' if b >= 56 else ''}".encode()
        before = {row.batch_key for row in self._rows().values() if row.lease == held.attempt_id}
        upload_id = self._sent_annotation(held, data)
        if upload_id is DIED:
            return
        said = {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data), "upload_id": upload_id}
        commit = CommitCache(**said)
        action = lambda: keep_annotation(self.ctx, held.attempt_id, ANNOTATION_ENTRY + key, commit)  # noqa: E731
        outcome = self.write(held, action, must=False, again=b % 3 == 0)
        if outcome is None or outcome is DIED or isinstance(outcome, GiornataError) or not held.only_annotates:
            return
        if self.exact:
            left = [row for row in self._rows().values() if row.state == "queued" and row.batch_key in before]
            assert not left, f"{key} is kept, and pictures still wait for it: {left}"

    def collect_annotations(self, a: int, b: int) -> None:
        """A project keeps annotations for a day. That day is over for all of them, also for those by which pictures
        wait to be drawn; then each node that draws asks for pictures."""
        if not self.exact:
            return
        if not (ready := self._projects_with_annotated()):
            self._annotate_one(a, b)
            ready = self._projects_with_annotated() or PROJECTS
        project = ready[a % len(ready)]
        self.rig.clock.advance_s(DAY_S + b)
        set_retention(self.ctx, ROOT, project, SetRetention(datasets=1))
        self.call(lambda: bool(apply_retention(self.ctx)))
        set_retention(self.ctx, ROOT, project, SetRetention())
        assert self.rig.new_dataset(project) == self.rig.datasets[project]  # it went too, unless a job uses it
        self.checker.look()
        for number in range(len(PLACES_THAT_DRAW)):
            self.claim_pictures(number, MOST_AT_ONCE)
            self.checker.look()

    def _annotate_one(self, a: int, b: int) -> None:
        """Somebody orders pictures by one annotation, and the nodes that annotate make what is wanted of them."""
        self.claim_annotations(a, MOST_AT_ONCE)  # orders are refused while no such node is connected
        self.place_by_annotations(a - a % 4, b)
        for number in range(len(PLACES_THAT_ANNOTATE)):
            self.claim_annotations(number, MOST_AT_ONCE)
            self.annotate(0, number)
            self.checker.look()

    def _projects_with_annotated(self) -> Sequence[str]:
        return sorted({row.project_id for row in self._rows().values() if self._is_drawn_by_annotation(row)})

    def _is_drawn_by_annotation(self, row: Row) -> bool:
        """Whether a picture is queued for its drawing, by an annotation that a model made."""
        if row.state != "queued" or row.base_key in BASES_BY_MODEL:
            return False
        order = self.checker.jobs[row.order_id]
        spec = json.loads(order.spec) if isinstance(order.spec, str) else order.spec
        return any(use["annotator"] in BY_MODEL for use in spec.get("controlnets", ()))

    def _sent_annotation(self, held: HeldPictures, data: bytes) -> Any:
        file = FileToUpload(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
        request = UploadRequest(files=(file,))
        reply = self.write(held, lambda: request_attempt_uploads(self.ctx, held.attempt_id, request))
        if reply is DIED:
            return DIED
        if reply is None or isinstance(reply, GiornataError) or reply.items[0].exists:
            return None
        ticket = reply.items[0]
        self.rig.blobs.put(ticket.put.url.removeprefix("memory:///"), data)
        return ticket.upload_id

    def _new_request(self) -> str:
        return f"request-{next(self.actors.numbers):07d}"


def _differs(row: Row) -> Any:
    return json.loads(row.differs) if isinstance(row.differs, str) else row.differs
