"""One annotation of an order of annotations. It stands among the rows of a batch, and needs no pass of the UNet."""

from PIL import Image

from giornata.protocol.generation.preprocess import AnnotationParams
from giornata.protocol.node.pictures import PictureFlag
from giornata.workloads.generate.control_pictures import ControlPictures
from giornata.workloads.generate.hub_reading import Told
from giornata.workloads.generate.lease_files import LeaseFiles


class AnnotationDrawing:
    """A finished annotation. Raises WorkloadFailed while it is made, when the picture cannot be annotated."""

    is_done = True
    flags = PictureFlag.NOTHING

    def __init__(
        self, params: AnnotationParams, *, annotated: ControlPictures, files: LeaseFiles, told: Told
    ) -> None:
        self.params = params
        self._image = annotated.of(params, files, told, where="spec")

    def go_on(self) -> bool:
        """Return False: there is one pass."""
        return False

    def evaluations_left(self) -> int:
        """Return 0, as nothing is left."""
        return 0

    def image(self) -> Image.Image:
        """Return the annotation as a picture."""
        return self._image
