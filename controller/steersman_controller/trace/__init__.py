"""Recordings: written while the sidecar runs, read by everything else."""
