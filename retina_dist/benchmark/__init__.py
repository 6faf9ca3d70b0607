"""Speed, measured: `python -m retina_dist.benchmark step | data | synthetic | scaling`, a module each.

Every figure is taken on the machine at hand; what is compared takes turns in one run, and is given as a ratio, because a
machine's speed drifts.
"""
