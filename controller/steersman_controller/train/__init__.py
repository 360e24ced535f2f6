"""Offline training: step times in, dense tables with a model card out."""
