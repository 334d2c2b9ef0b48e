"""What a dispatcher reports."""
