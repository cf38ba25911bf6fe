"""Pre-training on this machine, with one trainer killed in each phase: `make pretrain-demo`."""
