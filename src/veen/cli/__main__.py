"""`python -m veen.cli` is `veen`."""

from veen.cli.app import main

if __name__ == "__main__":
    main()
