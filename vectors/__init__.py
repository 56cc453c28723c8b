"""Known answers for other implementations, and the code that generates them. Start with README.md."""
