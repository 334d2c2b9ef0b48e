"""The command line: commands parse, call an operation, and print."""
