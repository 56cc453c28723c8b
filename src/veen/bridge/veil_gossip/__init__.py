"""Exchange of checkpoints, evidence and bundles over VEIL, so the clients of one hub can compare what it sent to each.

`gossip_items` defines and verifies the objects, `veil_node` calls the VEIL node on this machine, `checkpoint_compare`
compares them with what this client knows, `gossip_inbox` stores them, and `exchange`
publishes and receives. Neither the hub nor the network in between is trusted.
"""
