"""Names for model files of the node's store, which have none of their own. Loads no torch: annotators need it too."""

from pathlib import Path

SUFFIX = ".safetensors"


def with_suffix(path: Path, sha256: str, directory: Path) -> Path:
    """Return a name of the file that ends in `.safetensors`, in `directory` unless its own does: libraries unpickle
    files of other names."""
    if path.suffix == SUFFIX:
        return path
    link = directory / f"{sha256}{SUFFIX}"
    if not link.is_symlink():
        link.symlink_to(path.resolve())
    return link
