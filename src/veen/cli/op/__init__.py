"""`veen op`: operations that leave a proof of what was done."""
