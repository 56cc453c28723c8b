"""A witness: a small service that cosigns the checkpoints of hubs, and never two that contradict each other."""
