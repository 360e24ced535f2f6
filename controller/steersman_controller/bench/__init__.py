"""Benchmarks of the controller."""
