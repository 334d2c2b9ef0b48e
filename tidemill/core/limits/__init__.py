"""What work may take: processors, memory, bytes stored."""
