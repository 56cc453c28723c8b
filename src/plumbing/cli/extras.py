"""How a person gets an optional dependency of this project."""


def install_hint(extra: str) -> str:
    """The command that installs an extra. The package is on no index, so it is installed from a clone."""
    return f"run pip install '.[{extra}]' in the clone that it was installed from"
