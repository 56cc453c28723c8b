"""What the commands share: options, sessions with a hub, state, values and output."""
