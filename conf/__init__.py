"""Hydra configurations; installed as `retina_dist.conf`."""
