"""Promises of the engine, measured."""
