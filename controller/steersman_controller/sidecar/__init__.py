"""The process beside the engine: sockets, operators, metrics, files."""
