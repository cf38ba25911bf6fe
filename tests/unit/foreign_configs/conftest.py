"""Configurations of other trainers, written to a folder and read from there."""

import json

import pytest

from giornata.foreign_configs.reading import read_configs


@pytest.fixture
def read(tmp_path):
    """Reads texts (by their files' names) or objects, which become JSON."""

    def reading(**files):
        paths = []
        for name, content in files.items():
            path = tmp_path / name.replace("_toml", ".toml").replace("_yaml", ".yaml").replace("_json", ".json")
            path.write_text(content if isinstance(content, str) else json.dumps(content))
            paths.append(path)
        return read_configs(paths)

    return reading
