"""Our engine: packed forward, exact acceptance and rollback, one step at a time."""
