"""What the controller believes: the cost of a step, the acceptance of drafts, the load."""
