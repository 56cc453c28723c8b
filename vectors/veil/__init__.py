"""Known answers of VEIL, and the code that generates ours."""
