"""Measurements for developers, as ratios within one run: machines differ and drift, ratios taken in turn do not.

`veen.bench` has the measurements of `veen bench`; this package adds those that users do not need.
"""
