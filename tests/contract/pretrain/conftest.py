from tests.fixtures.kernels import kernel_directory  # noqa: F401
from tests.fixtures.seaweed import seaweed  # noqa: F401
