"""Measurements of a running hub, as ratios within one run: machines differ and drift, what is done in turn does not."""
