"""The workloads that run inside the engine, a package for each kind. Read `interface`, then `train`."""
