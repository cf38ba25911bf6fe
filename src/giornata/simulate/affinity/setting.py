"""The setting of a run: nodes, models, arrivals. Times are assumptions until they are measured on real nodes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinitySetting:
    """A fleet that draws pictures with many base models.

    A request is one lease's worth of pictures on one base, and takes a node `draw_s`. `load_s` loads a base into GPU
    memory, `fetch_s` fetches it from storage. `gpu_bases` and `disk_bases` are the bases that a node has room for
    (`disk_bases` None: all lie on every disk from the beginning). The base number i is asked for in proportion to
    (i + 1)^-zipf. `load` is the share of the fleet's time that drawing takes. A node lives `node_life_s` on average,
    and an empty one takes its place. From `outage_from_s` on the server answers no claim for `outage_s`.
    """

    nodes: int = 100
    bases: int = 1000
    zipf: float = 1.0
    load: float = 0.5
    draw_s: float = 10.0
    load_s: float = 6.0
    fetch_s: float = 60.0
    gpu_bases: int = 2
    disk_bases: int | None = None
    node_life_s: float | None = None
    outage_from_s: float | None = None
    outage_s: float = 0.0
    warm_up_s: float = 1200.0
    measured_s: float = 3600.0

    @property
    def requests_per_s(self) -> float:
        """Arrivals of all bases together."""
        return self.load * self.nodes / self.draw_s

    def popularity(self) -> list[float]:
        """Return the share of each base in the requests; the sum is 1."""
        weights = [(number + 1) ** -self.zipf for number in range(self.bases)]
        total = sum(weights)
        return [weight / total for weight in weights]
