"""`python -m veil.cli` is `veil`."""

from veil.cli.app import main

if __name__ == "__main__":
    main()
