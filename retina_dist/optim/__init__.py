"""Optimizers, schedules, clipping."""
