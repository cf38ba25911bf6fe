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
        ("up", "operate.serve", "Run everything on this machine: server, storage and nodes."),
        ("tiny-model", "tools.model", "Make a tiny base model to try things on, without a download."),
    ),
    _section(
        "Jobs",
        ("train", "jobs.train", "Train a LoRA on the pictures in DIR."),
        ("sweep", "jobs.sweep", "Train LoRAs that differ in some settings, under one budget."),
        ("generate", "jobs.generate", "Draw pictures of each PROMPT."),
        ("preprocess", "jobs.preprocess", "Make control pictures, such as edges or depth, from FILEs."),
        ("presets", "tools.presets", "List the presets: named starting points for training."),
        ("jobs", "jobs.jobs", "List the jobs of the project, newest first."),
        ("job", "jobs.jobs", "Show one job with its attempts and its cost."),
        ("compare", "jobs.compare", "Show training jobs side by side: loss, cost, and what differs."),
        ("follow", "jobs.follow", "Show a job's progress until its end, and download its results."),
        ("events", "jobs.follow", "List the events of a job."),
        ("logs", "jobs.follow", "Show the log of a job."),
        ("pictures", "jobs.pictures", "List or find pictures; star, tag, download or delete them."),
        ("checkpoints", "jobs.download", "List the checkpoints of a job, highest step first."),
        ("download", "jobs.download", "Download and verify the results of a job."),
        ("verify", "jobs.verify", "Verify the signed record of a job, offline."),
        ("cancel", "jobs.jobs", "Cancel a job."),
        ("retry", "jobs.jobs", "Continue a job that failed, ended early or is in doubt."),
        ("delete", "operate.project.end_of_life", "Delete a job or a dataset with its files."),
        ("pin", "operate.project.end_of_life", "Keep a job, a dataset or a checkpoint (JOB@STEP)."),
        ("unpin", "operate.project.end_of_life", "Unpin a job, a dataset or a checkpoint (JOB@STEP)."),
        ("pins", "operate.project.end_of_life", "List the pinned jobs, datasets and checkpoints of the project."),
    ),
    _section(
        "Pictures",
        ("grid", "generation.grid", "Draw a picture of each combination of values, as one sheet."),
        ("bench", "generation.bench", "Measure an installation with a published benchmark."),
        ("models", "operate.project.models", "Register model files for drawing and training."),
    ),
    _section(
        "Money",
        ("budget", "jobs.budget", "Show or set the budget of a job."),
        ("costs", "operate.project.costs", "Show the costs of jobs and of fleets."),
    ),
    _section(
        "Nodes",
        ("node", "operate.fleet.node", "Join a server with this machine and run its jobs."),
        ("nodes", "operate.fleet.nodes", "List the nodes and their jobs; drain a node."),
        ("machines", "operate.fleet.machines", "Show the health of machines; quarantine or release a machine."),
        ("fleets", "operate.fleet.fleets", "Show fleets and their nodes; pause, scale or roll a fleet."),
    ),
    _section(
        "Server",
        ("server", "operate.serve", "Run a server without nodes."),
        ("loops", "operate.fleet.loops", "Show what each loop of the server did last."),
        ("key", "operate.people.keys", "Create, list, rotate and revoke API keys."),
        ("project", "operate.people.keys", "Create projects; set their quotas, budgets, members."),
        ("user", "operate.people.users", "Create, list and change the accounts of people."),
        ("secrets", "operate.project.secrets", "Store tokens that jobs need, such as for gated models."),
        ("webhook", "operate.project.webhooks", "Send events to a URL, to Slack, to Discord or by mail."),
        ("audit-log", "operate.project.audit_log", "Show who changed what; verify that nothing was altered."),
    ),
    _section(
        "Maintenance",
        ("doctor", "maintenance.doctor.command", "Find what is wrong with an installation, and what to do."),
        (
            "backup",
            "maintenance.backup",
            "Save an installation on SQLite in one file, while it runs.",
        ),
        ("restore", "maintenance.backup", "Restore a backup into a new folder; verify every byte."),
        ("migrate-store", "maintenance.migrate_store", "Move an installation from SQLite to PostgreSQL."),
    ),
    _section(
        "Which server",
        ("login", "operate.people.login", "Use a server from now on."),
        ("whoami", "operate.people.users", "Show the project, the scopes and the person of your key."),
        ("notifications", "operate.people.notifications", "Show or set the mails about your own jobs."),
        ("identity", "operate.identities", "List and unlink your accounts at the OpenID provider."),
        ("logout", "operate.people.login", "Forget a saved server, and revoke the key of the login."),
        ("contexts", "operate.people.login", "List the servers that giornata login has saved."),
        ("use", "operate.people.login", "Use another saved server, or the installation on this machine."),
    ),
    _section(
        "Without a server",
        ("lora", "lora", "Inspect, resize and merge LoRA files."),
        ("pretrain", "pretraining.pretrain", "Pre-train on Ray: price a run, prepare data, train, evaluate."),
        ("simulate", "tools.simulate", "Simulate weeks of a fleet in a minute, on a virtual clock."),
    ),
)

PRETRAIN_COMMANDS = (
    _section(
        "Before a run",
        ("plan", "pretraining.pretrain_plan", "Estimate hours and dollars of a run before you rent machines."),
        ("ingest", "pretraining.pretrain_ingest", "Check every picture, and write the sound ones as shards."),
        ("encode", "pretraining.pretrain_encode", "Encode all shards for the modes offline and hybrid."),
    ),
    _section(
        "A run",
        ("run", "pretraining.pretrain_run", "Train through all phases, from the last checkpoint."),
        ("submit", "pretraining.pretrain_submit", "Submit the run as a job for a node that has a Ray cluster."),
        ("eval", "pretraining.pretrain_eval", "Evaluate a checkpoint: sample images, validation loss, scores."),
    ),
)
