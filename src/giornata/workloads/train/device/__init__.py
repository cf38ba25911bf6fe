"""Steps on a device: memory, compiled kernels, CUDA graphs. Read `memory_budget` first."""
