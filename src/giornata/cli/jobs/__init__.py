"""Commands about jobs: submit, watch, download, budget. Read `train` first, then `submission` and `follow`."""
