"""Known answers of VEIL, and the code that writes ours."""
