"""Bridges between hubs (air-gap bundles, online mirrors, anchors) and between the clients of one hub.

`bundle` defines the bundle format and its checks. `bundle_export`, `bundle_import` and `reconciliation` are the two
sides of an air gap; `zone_roles` separates their permissions, `qr` prints bundles. `mirror` copies streams online,
`anchors` binds checkpoints to outside systems, and `veil_gossip/` exchanges checkpoints and evidence between the
clients of one hub over VEIL.
"""
