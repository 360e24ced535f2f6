"""`steersman sweep`: one scenario under many settings, in parallel, resumable, one row per cell."""
