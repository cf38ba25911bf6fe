"""Counts of the pictures that ended, as far as this process told of them."""

import threading
from collections import Counter
from collections.abc import Mapping

from giornata.domain.generation.picture import PictureState


class EndedPictures:
    """Counts ended pictures by state, from any thread. Each picture counts in one process, once its order tells of
    it; no table of pictures is ever counted for this.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[PictureState] = Counter()

    def add(self, counts: Mapping[PictureState, int]) -> None:
        """Count the pictures that have just ended."""
        with self._lock:
            self._counts.update(counts)

    def counts(self) -> dict[PictureState, int]:
        """Return the pictures since the process began, by state."""
        with self._lock:
            return dict(self._counts)
