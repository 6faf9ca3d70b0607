"""Checkpoints: files and their folder (store), where to resume (resume), who may write (folder_owner)."""
