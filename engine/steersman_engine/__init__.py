"""A torch engine with exact speculative decoding, its drafters, and adapters for other engines."""
