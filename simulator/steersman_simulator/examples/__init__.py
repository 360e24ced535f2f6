"""Scenarios to start from: `steersman simulate --example NAME > mine.yaml`."""
