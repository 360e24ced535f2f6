"""Acceptance traces from logs: what a drafter would have had accepted in text that is already written."""
