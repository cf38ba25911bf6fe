"""Folders of tests lie in memory where it has room: a disk takes milliseconds to sync a file, and to delete one."""

import os

from tests.fixtures.memory_folder import memory_folder

if (folder := memory_folder()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", folder)  # pytest reads it when a test first asks for a folder
