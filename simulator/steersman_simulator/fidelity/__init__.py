"""How far the simulator is from serving runs that were measured elsewhere."""
