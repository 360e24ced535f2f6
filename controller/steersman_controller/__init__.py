"""Learned belief, the sidecar that renews an engine's plan, and the command line."""
