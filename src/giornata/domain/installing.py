"""How to install what is missing.

No package index has Giornata, and anybody may take its name on one. A command that installs it from an index may run
the code of a stranger, so every hint names a clone.
"""


def install_hint(*extras: str) -> str:
    """The command that installs these extras."""
    return f"in a clone of Giornata: pip install -c constraints.txt '.[{','.join(extras)}]'"
