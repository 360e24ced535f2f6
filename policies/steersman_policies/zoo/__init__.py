"""The shipped policies, one module each. Adding a file here adds a policy, and its tests."""
