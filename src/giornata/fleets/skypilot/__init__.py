"""Nodes on any cloud that SkyPilot reaches, each as a SkyPilot cluster of one machine.

Read `driver` first: the class is the fleet. `task` describes a node as a SkyPilot task, and `clouds` asks SkyPilot
what its clouds can launch and what its clusters do.
"""

from giornata.fleets.skypilot.driver import SkyPilotFleet, open_fleet
from giornata.fleets.skypilot.task import SkyPilotOptions

OPTIONS = SkyPilotOptions
__all__ = ["OPTIONS", "SkyPilotFleet", "open_fleet"]
