"""A node with settings that the command line does not offer: `node.py '{"url": …, …}'`."""

import json
import sys
from pathlib import Path

from giornata.agent.main import run_node
from giornata.agent.settings import AgentSettings

given = json.loads(sys.argv[1])
given["workloads"] = {kind: tuple(command) for kind, command in given["workloads"].items()}
if "engine" in given:
    given["engine"] = tuple(given["engine"])
sys.exit(run_node(AgentSettings(**{**given, "work_dir": Path(given["work_dir"]), "kinds": tuple(given["kinds"])})))
