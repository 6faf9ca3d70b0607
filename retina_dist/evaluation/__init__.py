"""COCO metrics, on one process or many."""
