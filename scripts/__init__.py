"""Scripts to run by hand before a training; installed as `retina_dist.scripts`."""
