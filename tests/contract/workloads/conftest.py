"""The tiny models, in a process set up as the engine's."""

from tests.fixtures.joint_train_rig import joint_rig  # noqa: F401
from tests.fixtures.kernels import kernel_directory  # noqa: F401
from tests.fixtures.tiny_model import as_in_the_engine, tiny_folder, tiny_sd15_folder  # noqa: F401
