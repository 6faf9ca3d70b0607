"""Annotations and images in, batches on static canvases out."""
