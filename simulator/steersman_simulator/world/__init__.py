"""The serving system itself: engines, their queues and caches, the sidecar, the clock."""
