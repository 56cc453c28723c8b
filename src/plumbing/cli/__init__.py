"""The command-line kit shared by `veen` and `veil`. It imports neither of them."""


def install_hint(extra: str) -> str:
    """The command that installs an extra. The package is not on PyPI, so it is installed from a clone."""
    return f"run pip install '.[{extra}]' in the clone that it was installed from"
