"""Every command of `giornata`: its name, its module and its help, in the order of `giornata --help`.

A test compares this index with the commands themselves.
"""

from giornata.cli.lazy_group import Entry, Section

_ROOM = "giornata.cli."


def _section(title: str, *rows: tuple[str, str, str]) -> Section:
    return Section(
        title=title, entries=tuple(Entry(name=name, module=_ROOM + module, help=text) for name, module, text in rows)
    )


COMMANDS = (
    _section(
        "Start here",
        ("up", "serve", "Run everything on this machine: server, storage and nodes."),
        ("demo", "demo", "Train LoRAs, kill nodes meanwhile, and compare the bytes."),
        ("tiny-model", "model", "Make a tiny base model to try things on, without a download."),
    ),
    _section(
        "Jobs",
        ("train", "train", "Train a LoRA on the pictures in DIR."),
        ("presets", "presets", "Named starting points for training."),
        ("jobs", "jobs", "List jobs, newest first."),
        ("job", "jobs", "Show one job with its attempts and its cost."),
        ("follow", "follow", "Show a job's progress until its end, and fetch its results."),
        ("events", "follow", "Show what happened to a job."),
        ("logs", "follow", "Show what a job's workload said."),
        ("checkpoints", "download", "List a job's checkpoints, highest step first."),
        ("download", "download", "Fetch a job's results, verified."),
        ("cancel", "cancel_and_retry", "End a job."),
        ("retry", "cancel_and_retry", "Go on with a job that failed, expired or was canceled."),
    ),
    _section(
        "Money",
        ("budget", "budget", "Show what a job may cost, or change it."),
        ("costs", "costs", "Show what jobs cost, and what fleets are billed for."),
    ),
    _section(
        "Nodes",
        ("node", "node", "Join a server with this machine, and do its jobs."),
        ("nodes", "nodes", "List the nodes, and what they are at; drain one."),
        ("machines", "machines", "See how machines fare; quarantine one, or release it."),
        ("fleets", "fleet_table", "See what each fleet has and should have, and change it."),
    ),
    _section(
        "Server",
        ("server", "serve", "Run a server without nodes."),
        ("key", "keys", "Make, list and revoke API keys."),
        ("project", "keys", "Make and list projects (tenants), and limit what they may have."),
        ("secrets", "secrets", "Keep tokens that jobs need, such as for gated models."),
    ),
    _section(
        "Which server",
        ("login", "login", "Use a server from now on, with a key that is asked for."),
        ("logout", "login", "Forget a server and its key."),
        ("contexts", "login", "List the servers that giornata login has saved."),
        ("use", "login", "Use another saved server, or the installation on this machine."),
    ),
    _section(
        "Without a server",
        ("lora", "lora", "Look at LoRA files, resize and merge them."),
        ("pretrain", "pretrain", "Pre-train on Ray: price it, prepare the data, train, judge."),
        ("simulate", "simulate", "Play weeks of a fleet in a minute, on a virtual clock."),
    ),
)

PRETRAIN_COMMANDS = (
    _section(
        "Before a run",
        ("plan", "pretrain_plan", "Price a run before anything is rented."),
        ("ingest", "pretrain_ingest", "Check every picture, and write the good ones as shards."),
        ("encode", "pretrain_encode", "Encode all shards for the modes offline and hybrid."),
    ),
    _section(
        "A run",
        ("run", "pretrain_run", "Train through all phases, from wherever the run was."),
        ("submit", "pretrain_submit", "Queue the run for a node that has a Ray cluster."),
        ("eval", "pretrain_eval", "Judge a checkpoint: samples, validation loss, scores."),
    ),
)
