"""Checkpoints: files and their folder (store), where to resume (resume), who may write (owner)."""
