"""What deterministic kernels need before CUDA starts; the agent sets the same for its engine."""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
