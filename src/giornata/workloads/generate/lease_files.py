"""The files of one lease on the node's disk, by sha256."""

from collections.abc import Callable, Mapping
from pathlib import Path

from PIL import Image

from giornata.diffusion.base.safetensors_link import with_suffix
from giornata.diffusion.encode.decoding import Undecodable, decode
from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.generation.annotators import ANNOTATION_ENTRY
from giornata.protocol.generation.picture import ModelUse
from giornata.protocol.node.pictures import ANNOTATION_ROLE
from giornata.protocol.node.pipe import Start

WANTED_ANNOTATIONS = "wanted_annotations"


class LeaseFiles:
    """The files that came with a lease: verified, and named by their hash. `keep` offers a file to later leases."""

    def __init__(self, start: Start, *, keep: Callable[[str, Path], None]) -> None:
        self._paths: Mapping[str, Path] = {
            each.sha256: each.path for each in start.inputs if each.role != ANNOTATION_ROLE
        }
        self._annotations = {each.name: each.path for each in start.inputs if each.role == ANNOTATION_ROLE}
        self._wanted = set(start.spec.get(WANTED_ANNOTATIONS, ()))
        self._directory, self._keep = start.directory, keep

    def weights(self, use: ModelUse, *, where: str) -> Path | None:
        """Return the weights of a model, under a name that ends in `.safetensors`; None for one without a sha256,
        which its reader finds by its name."""
        if use.sha256 is None:
            return None
        return with_suffix(self._path(use.sha256, use.name, where=where), use.sha256, self._directory)

    def file(self, use: ModelUse, *, where: str) -> Path:
        """Return the file of a model that has to be one file: a LoRA, or an embedding. Raises WorkloadFailed."""
        path = self.weights(use, where=where) or Path(use.name).expanduser()
        if not path.is_file():
            fault = Fault(where=where, message=f"there is no file {use.name}", hint="add it by giornata models add")
            raise WorkloadFailed(Reason.BAD_SPEC, str(fault), (fault,))
        return path

    def holds(self, sha256: str) -> bool:
        """Return True for a file that came with the lease."""
        return sha256 in self._paths

    def annotation(self, key: str) -> Image.Image | None:
        """Return an annotation that came with the lease; None when there is none that can be shown."""
        try:
            return decode(self._annotations[key]) if key in self._annotations else None
        except Undecodable:
            return None

    def keep_annotation(self, key: str, image: Image.Image) -> None:
        """Offer an annotation to later leases, once, where the project wants it."""
        if key in self._wanted:
            self._wanted.discard(key)
            path = self._directory / f"annotation-{key}.png"
            image.save(path, "PNG")
            self._keep(ANNOTATION_ENTRY + key, path)

    def picture(self, sha256: str, *, where: str) -> Image.Image:
        """Return a picture as a viewer shows it. Raises WorkloadFailed for one that cannot be shown."""
        try:
            return decode(self._path(sha256, sha256, where=where))
        except Undecodable as error:
            fault = Fault(where=where, message=f"the picture {error}", hint="give another picture")
            raise WorkloadFailed(Reason.BAD_DATA, str(fault), (fault,)) from error

    def _path(self, sha256: str, name: str, *, where: str) -> Path:
        """Return the file. The server leaves out of a lease what it has no more: no other node gets it either."""
        if sha256 not in self._paths:
            fault = Fault(where=where, message=f"the server no longer has the file of {name}", hint="add it again")
            raise WorkloadFailed(Reason.BAD_DATA, str(fault), (fault,))
        return self._paths[sha256]
