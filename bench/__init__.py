"""Measurements, as ratios within one run: machines differ and drift, the ratio of two things done in turn does not."""
