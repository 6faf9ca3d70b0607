"""Installed as `retina_dist.scripts`: what is run by hand, on a node, before training."""
