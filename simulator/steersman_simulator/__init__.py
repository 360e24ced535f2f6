"""A serving system on a virtual clock, driven by the same controller and policies as the real one."""
