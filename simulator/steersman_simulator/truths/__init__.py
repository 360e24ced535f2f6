"""What the hardware would do: where the seconds of a step come from."""
