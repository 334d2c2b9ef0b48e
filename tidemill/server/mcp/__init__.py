"""The operations as tools of the Model Context Protocol, for assistants."""
