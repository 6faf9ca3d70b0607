"""Annotations and images in, batches of few padded shapes out."""
