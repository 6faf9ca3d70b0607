"""Speed, measured on the machine at hand.

Figures to be compared take turns in one run, because a machine's speed drifts.
"""
