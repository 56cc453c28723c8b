"""Known answers for other implementations, and what makes them. Start with README.md."""
