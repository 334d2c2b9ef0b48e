"""What routes read and show."""
