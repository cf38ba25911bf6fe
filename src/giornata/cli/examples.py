"""Examples for the help of each command. A test reads each of them with the command's own parser."""

from collections.abc import Mapping, Sequence

_PROMPT = '--instance-prompt "a photo of sks dog"'

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "up": ("giornata up", "giornata up --nodes 2 --port 8080 --data ./giornata", "giornata up --max-nodes 4"),
    "server": (
        "giornata server --data /var/lib/giornata",
        "giornata server --host 0.0.0.0 --database postgresql://giornata@db/giornata \\\n    --blobs s3://my-bucket",
    ),
    "node": (
        "giornata node --join https://giornata.example.com#KEY",
        "giornata node --join https://giornata.example.com#KEY --price 0.35 --places 4",
        "giornata node --kind x-count --workload x-count='python count.py'",
    ),
    "tiny-model": ("giornata tiny-model ./tiny --shapes", "giornata tiny-model ./tiny-sd15 --family sd15"),
    "train": (
        f"giornata train ./my-dog {_PROMPT} \\\n    --model stabilityai/stable-diffusion-xl-base-1.0 --follow",
        "giornata train ./my-dog --preset subject --set instance_prompt='a sks dog' \\\n"
        "    --model ./sd_xl_base_1.0.safetensors --max-cost 0.50 --estimate",
        "giornata train --from config.toml --from dataset.toml \\\n    --standalone -o ./lora --checkpoint-to ./safe",
    ),
    "generate": (
        'giornata generate "a red fox in the snow" \\\n'
        "    --model stabilityai/stable-diffusion-xl-base-1.0 -n 4 -o ./foxes",
        'giornata generate "a photo of sks dog" --model ./tiny --lora JOB:0.8 \\\n'
        "    --size 768x512 --steps 20 --scheduler 'DPM++ 2M Karras' --seed 7",
        "giornata generate --from-image ./fox.png --seed 8 -n 4 -o ./foxes",
    ),
    "grid": (
        'giornata grid "a photo of a {who}" --axis who=doctor,nurse --axis guidance_scale=4,7 \\\n'
        "    --model ./tiny -n 3 -o ./grid",
        "giornata grid --file grid.toml -o ./grid",
        "giornata grid --retry JOB --cell 17 -o ./grid",
    ),
    "bench images": (
        "giornata bench images --count 60600 --prompts prompts.txt \\\n"
        "    --model stabilityai/stable-diffusion-xl-base-1.0",
        "giornata bench images --count 100 --prompts prompts.txt --model ./tiny --size 64x64 --steps 4",
    ),
    "preprocess": (
        "giornata preprocess photo.png --annotator canny -o ./edges",
        "giornata preprocess *.jpg --annotator lineart --set sigma=3 -o ./lines",
    ),
    "sweep run": (
        "giornata sweep run ./my-dog --preset subject --set rank=8,16 --set learning_rate=1e-4,5e-5 --max-cost 5",
        "giornata sweep run ./my-dog --preset subject --changes changes.json",
    ),
    "sweep show": ("giornata sweep show SWEEP", "giornata sweep show my-dog --json"),
    "compare": ("giornata compare my-dog last", "giornata compare JOB JOB JOB --json"),
    "presets": ("giornata presets", "giornata presets --json"),
    "presets show": ("giornata presets show subject",),
    "jobs": (
        "giornata jobs",
        "giornata jobs --state running --label team=art",
        "giornata jobs --kind train --search fox --json",
    ),
    "job": ("giornata job JOB", "giornata job JOB --json", "giornata job JOB --provenance"),
    "verify": (
        "giornata verify record.json --public-key KEY --lora ./my-lora.safetensors",
        "giornata verify record.json --public-key KEY --repeat --spec job.json --data-dir ./my-dog -o ./again",
    ),
    "follow": ("giornata follow last", "giornata follow my-dog -o ./loras"),
    "events": ("giornata events JOB", "giornata events JOB --follow"),
    "logs": ("giornata logs JOB", "giornata logs JOB --follow"),
    "pictures": (
        "giornata pictures JOB",
        "giornata pictures --match fox --starred -o foxes",
        "giornata pictures JOB --number 3 --star --tag print",
    ),
    "delete": ("giornata delete JOB", "giornata delete JOB --cancel", "giornata delete ds_0123"),
    "pin": ("giornata pin JOB", "giornata pin JOB@500", "giornata pin ds_0123"),
    "unpin": ("giornata unpin JOB@500",),
    "pins": ("giornata pins",),
    "checkpoints": ("giornata checkpoints JOB",),
    "download": (
        "giornata download JOB -o ./my-lora",
        "giornata download JOB@500 -o ./my-lora",
        "giornata download JOB -o ./my-lora --checkpoint 500 --format kohya",
    ),
    "cancel": ("giornata cancel JOB",),
    "retry": ("giornata retry JOB",),
    "budget": ("giornata budget JOB", "giornata budget JOB 0.50", "giornata budget --project art --monthly 20"),
    "costs": (
        "giornata costs",
        "giornata costs --days 7 --json",
        "giornata costs --by-day --label customer --csv",
    ),
    "login": (
        "giornata login https://giornata.example.com --scope jobs:read --expires 7d",
        "giornata login https://giornata.example.com --key --name studio < key.txt",
        "giornata login https://giornata.example.com --email ann@example.com",
    ),
    "logout": ("giornata logout", "giornata logout studio --keep-key"),
    "contexts": ("giornata contexts",),
    "use": ("giornata use studio", "giornata use local"),
    "nodes": ("giornata nodes", "giornata nodes --json"),
    "nodes drain": ("giornata nodes drain shed",),
    "nodes undrain": ("giornata nodes undrain shed",),
    "machines": ("giornata machines", "giornata machines --state quarantined"),
    "machines quarantine": ('giornata machines quarantine MACHINE --reason "fan is broken"',),
    "machines release": ("giornata machines release MACHINE",),
    "loops": ("giornata loops", "giornata loops --json"),
    "fleets show": ("giornata fleets", "giornata fleets show spot", "giornata fleets show --json"),
    "fleets pause": ("giornata fleets pause spot",),
    "fleets resume": ("giornata fleets resume spot",),
    "fleets scale": (
        "giornata fleets scale spot --max 20",
        "giornata fleets scale spot --min 2 --max 8 --max-price 0.35",
        "giornata fleets scale spot --as-settings",
    ),
    "fleets roll": ("giornata fleets roll spot",),
    "key create": (
        "giornata key create --scope node --name shed",
        "giornata key create --project art --scope admin",
        "giornata key create --scope jobs:read --scope generate --expires 90d",
    ),
    "key list": ("giornata key list",),
    "key rotate": ("giornata key rotate KEY", "giornata key rotate KEY --overlap 0s"),
    "key revoke": ("giornata key revoke KEY",),
    "project create": ("giornata project create art --name 'Art department'",),
    "project list": ("giornata project list",),
    "project limits": ("giornata project limits art", "giornata project limits art --max-pictures 5000"),
    "project quotas": (
        "giornata project quotas art",
        "giornata project quotas art --running-jobs 3 --queued-jobs 100 --open-orders 10 --stored 50GB",
        "giornata project quotas art --base 'stabilityai/*' --adapter source:job --requests-per-s 20",
    ),
    "project safety": ("giornata project safety art", "giornata project safety art block"),
    "project budget": (
        "giornata project budget art",
        "giornata project budget art 50 --monthly 20",
        "giornata project budget art none",
    ),
    "project delete": ("giornata project delete art", "giornata project delete art --confirm art --cancel"),
    "project retention": (
        "giornata project retention",
        "giornata project retention checkpoints=30d logs=4w artifacts=none",
        "giornata project retention pictures=30d --preview --project art",
    ),
    "project export": ("giornata project export art.tar",),
    "project import": ("giornata project import art.tar",),
    "project members": ("giornata project members art",),
    "project role": ("giornata project role art USER owner",),
    "project remove": ("giornata project remove art USER",),
    "project invite": ("giornata project invite art --role member", "giornata project invite art --expires 1d"),
    "project invitations": ("giornata project invitations",),
    "project uninvite": ("giornata project uninvite INVITATION",),
    "project join": ("giornata project join 'https://giornata.example.com/invitation#SECRET' ann@example.com",),
    "user create": (
        "giornata user create ann@example.com --name Ann",
        "giornata user create ann@example.com --operator < password.txt",
    ),
    "user list": ("giornata user list",),
    "user change": ("giornata user change USER --operator", "giornata user change USER --inactive"),
    "whoami": ("giornata whoami",),
    "notifications": ("giornata notifications failures", "giornata notifications all --daily-digest"),
    "identity list": ("giornata identity list", "giornata identity list --json"),
    "identity unlink": ("giornata identity unlink identity_4f0c…",),
    "models add": (
        "giornata models add my-base ./my-base.safetensors --pin",
        "giornata models add fixed-vae madebyollin/sdxl-vae-fp16-fix:sdxl_vae.safetensors",
        "giornata models add watercolor urn:air:sdxl:lora:civitai:123@456",
    ),
    "models list": ("giornata models list",),
    "models coverage": ("giornata models coverage my-base",),
    "models pin": ("giornata models pin my-base", "giornata models pin my-base --off"),
    "models remove": ("giornata models remove watercolor",),
    "secrets set": ("giornata secrets set HUB < token.txt",),
    "secrets list": ("giornata secrets list",),
    "secrets delete": ("giornata secrets delete HUB",),
    "doctor": (
        "giornata doctor",
        "giornata doctor --server http://10.0.0.7:8470 --json",
        "giornata doctor --database postgresql://giornata@db/giornata --blobs s3://my-bucket \\\n"
        "    --public-url https://giornata.example.com",
    ),
    "backup": ("giornata backup monday.tar", "giornata --data ./giornata backup monday.tar --with-keys"),
    "restore": ("giornata --data ./restored restore monday.tar",),
    "migrate-store": (
        "giornata migrate-store sqlite:////var/lib/giornata/giornata.db postgresql://giornata@db/giornata",
        "giornata migrate-store sqlite:////var/lib/giornata/giornata.db --abandon",
    ),
    "webhook create": (
        "giornata webhook create https://example.org/hooks --event 'job.*' --event checkpoint.committed",
        "giornata webhook create https://hooks.slack.com/services/T0/B0/X --format slack --event job.failed",
        "giornata webhook create me@example.org --format mail --daily-digest",
    ),
    "webhook list": ("giornata webhook list",),
    "webhook change": (
        "giornata webhook change WEBHOOK --disable",
        "giornata webhook change WEBHOOK --event 'job.*'",
    ),
    "webhook rotate": ("giornata webhook rotate WEBHOOK --overlap 86400",),
    "webhook test": ("giornata webhook test WEBHOOK",),
    "webhook deliveries": (
        "giornata webhook deliveries WEBHOOK",
        "giornata webhook deliveries WEBHOOK --state dead --json",
    ),
    "webhook replay": ("giornata webhook replay WEBHOOK", "giornata webhook replay WEBHOOK 17 18"),
    "webhook delete": ("giornata webhook delete WEBHOOK",),
    "audit-log list": (
        "giornata audit-log list --since 2026-11-01",
        "giornata audit-log list --verb key.create --project acme",
        "giornata audit-log list --target JOB --json",
    ),
    "audit-log export": (
        "giornata audit-log export november.jsonl",
        "giornata audit-log export november.jsonl --all",
    ),
    "audit-log verify": (
        "giornata audit-log verify",
        "giornata audit-log verify november.jsonl --against october.jsonl",
    ),
    "lora inspect": ("giornata lora inspect my-dog.safetensors",),
    "lora resize": (
        "giornata lora resize my-dog.safetensors -o small.safetensors --rank 16",
        "giornata lora resize my-dog.safetensors -o small.safetensors --rank 32 \\\n    --method sv_fro --target 0.9",
    ),
    "lora merge": ("giornata lora merge dog.safetensors=0.7 oil.safetensors=0.3 -o both.safetensors",),
    "simulate": (
        "giornata simulate --list",
        "giornata simulate price-spike --jobs 60 --open",
        "giornata simulate outage --open --compare runs/outage-ancestor.json",
    ),
    "pretrain plan": (
        "giornata pretrain plan sd2_base",
        "giornata pretrain plan run.toml --assume prices.toml",
        "giornata pretrain plan run.toml --assume rates.toml",
    ),
    "pretrain ingest": ("giornata pretrain ingest ./pictures data/shards --set min_side_px=256",),
    "pretrain encode": ("giornata pretrain encode run.toml",),
    "pretrain run": (
        "giornata pretrain run run.toml",
        "giornata pretrain run run.toml --synthetic --steps 30 --out rates.toml",
        "giornata pretrain run run.toml --address HOST:6379",
    ),
    "pretrain submit": ("giornata pretrain submit run.toml --follow",),
    "pretrain eval": (
        "giornata pretrain eval run.toml",
        "giornata pretrain eval run.toml --clip openai/clip-vit-large-patch14 --rows 512",
    ),
}
"""By all words before the options. Words in capitals stand for names and ids."""


def as_epilog(examples: Sequence[str]) -> str:
    """The end of a command's help. `\\b` keeps the lines as they are written."""
    return "\n".join(["Examples:", "", "\b", *(f"  {example}" for example in examples)])
