"""The workloads that run inside the engine, one package for each kind."""
