"""Bridges between hubs: air-gap bundles, online mirrors, anchors; and between the clients of one.

`bundle` and `verifying` say what a bundle is and when it holds; `exporting`, `importing` and `reconciling` are the two
zones' sides of an air gap; `qr` prints bundles; `mirroring` copies online; `anchoring/` binds checkpoints to others;
`carriage/` carries what a hub signed to its other clients, over VEIL.
"""
