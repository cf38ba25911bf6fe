"""An order of pictures for the engine that draws without a model, and what has to be there in the end."""

import hashlib
import runpy
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from tests.system.conftest import PATIENCE_S, until
from tests.system.faults.rig import DRAW_ENGINE, Rig

from giornata.domain.generation.picture import PictureState, picture_key
from giornata.domain.jobs.job import TERMINAL, JobState
from giornata.store import schema

png_of = runpy.run_path(DRAW_ENGINE[-1])["png_of"]
SPEC = {"model": {"name": "stabilityai/stable-diffusion-xl-base-1.0"}, "width": 64, "height": 64, "seed": 7000}


def rows_of(rig: Rig, order_ids: Collection[str]) -> list[Mapping[str, Any]]:
    """The pictures of these orders as the store has them, by their seeds."""
    file = rig.server.data / "giornata.db"
    engine = sa.create_engine(rig.setup.database or f"sqlite:///file:{file}?mode=ro&uri=true")
    table = schema.pictures
    query = sa.select(table).where(table.c.order_id.in_(order_ids)).order_by(table.c.seed, table.c.number)
    try:
        with engine.connect() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]
    finally:
        engine.dispose()


def files_of(rig: Rig, rows: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """The files of these pictures as they lie in storage, each with the bytes that its row tells."""
    stored, found = rig.bytes.contents(), []
    for row in rows:
        key = picture_key(row["project_id"], row["lease"], row["sha256"])
        [name] = [each for each in stored if each.endswith(key)]
        found.append(rig.bytes.read(name))
        assert row["sha256"] == hashlib.sha256(found[-1]).hexdigest()
    return found


class OrderedPictures:
    """One order, with gates at which the engine stops."""

    def __init__(self, rig: Rig, *, prompts: list[str], **spec: Any) -> None:
        self.rig, self.count = rig, len(prompts)
        self.id = rig.client.submit({**SPEC, "prompts": prompts, **spec}, kind="generate").id

    def rows(self) -> list[Mapping[str, Any]]:
        """The pictures as the store has them, by number."""
        return rows_of(self.rig, [self.id])

    def states(self) -> Counter[PictureState]:
        """How many pictures are in each state."""
        return Counter(PictureState(row["state"]) for row in self.rows())

    def await_succeeded(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until every picture has ended, and the order with them; all have to be there once."""
        over = {PictureState.SUCCEEDED, PictureState.FAILED, PictureState.CANCELED}
        until(lambda: self.states().keys() <= over, lambda: f"the end of {self.states()}\n{self.story()}", patience_s)
        assert self.states() == {PictureState.SUCCEEDED: self.count}, self.story()
        assert [row["number"] for row in self.rows()] == list(range(self.count))
        job = until(self._ended_job, lambda: f"the end of the order\n{self.story()}")
        assert job.state is JobState.SUCCEEDED

    def files(self) -> list[bytes]:
        """The files of the pictures, by number, as they lie in storage."""
        return files_of(self.rig, self.rows())

    def finish(self) -> None:
        """Wait for the end: every picture is there once, with the bytes that the engine wrote."""
        self.await_succeeded()
        assert self.files() == [png_of(SPEC["seed"] + number) for number in range(self.count)]

    def _ended_job(self) -> Any:
        job = self.rig.client.get_job(self.id)
        return job if job.state in TERMINAL else None

    def story(self) -> str:
        """What is known of the order, for whoever reads a failure."""
        return "\n".join([*map(str, self.rows()), self.rig.story(self.id)])


class PromptGate:
    """A file at which the engine stops, for prompts."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"gate{secrets.token_hex(4)}"
        self.path.touch()

    @property
    def word(self) -> str:
        """The word of a prompt."""
        return f"gate={self.path}"

    def pid(self) -> int:
        """Wait until an engine stands here; the process id of the engine."""
        here = self.path.with_name(self.path.name + ".here")
        return int(until(lambda: here.exists() and here.read_text(), f"an engine at {self.path}"))

    def open(self) -> None:
        """Let the engine go on."""
        self.path.unlink()
