"""Checkpoints, evidence and bundles as VEIL objects, so that clients of one hub can compare what it told each of them.

`items` says what travels; `node` and `meeting` are the way to a VEIL node that runs on this machine; `publishing` says
something; `inbox`, `staging`, `judging`, `holding` and `receiving` take in what others said and hold it against what is
known here. Neither the hub nor the network in between is believed.
"""
