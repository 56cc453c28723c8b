"""What the two commands of this project, `veen` and `veil`, have in common on a terminal. It knows neither of them."""
