"""What a run amounts to, and the files that it leaves."""
