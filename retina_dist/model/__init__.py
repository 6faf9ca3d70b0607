"""Norms, convolutions and weights for the models of all tasks."""
