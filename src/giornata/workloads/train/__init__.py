"""The training workload: DreamBooth LoRA for SDXL and SD 1.5. Read `workload`, `attempt` and `steps` first."""
