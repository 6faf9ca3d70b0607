"""Checkpoints: files and their folder (store), who may write (folder_owner)."""
