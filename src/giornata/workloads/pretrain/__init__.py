"""Pre-training as a job of the platform: Ray runs it on the operator's cluster. Read `workload` first."""
