"""Whether the simulator, the policies and the controller agree with theory and with published numbers."""
