"""Layout and rendering of graphs as Mermaid, SVG and PNG."""
