"""Checkpoints: files and their folder (store), when to save (when), where to resume (resume), who may write (owner)."""
