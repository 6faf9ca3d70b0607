"""Annotation formats."""
