"""The vocabulary shared by every part of Steersman, and the pure decisions.

This package sits at the bottom of the house: the standard library and msgspec only. It reads no
clock, draws no random number and opens no socket; time and chance are arguments.
"""
