"""`veen op`: operations of the nine profiles."""
