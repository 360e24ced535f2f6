"""The OpenAI-compatible server around the engine."""
