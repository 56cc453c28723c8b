"""Run `veil` as `python -m veil.cli`."""

from veil.cli.app import main

if __name__ == "__main__":
    main()
