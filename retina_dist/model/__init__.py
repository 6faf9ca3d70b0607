"""The detector: targets, losses, network, weights."""
