"""The command-line kit shared by `veen` and `veil`. It imports neither of them."""
