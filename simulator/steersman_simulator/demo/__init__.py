"""`steersman demo`: a real model, steered under changing load, measured, and simulated beside it."""
