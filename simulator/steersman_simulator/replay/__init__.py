"""Recorded telemetry again: the same events, or another policy on them."""
