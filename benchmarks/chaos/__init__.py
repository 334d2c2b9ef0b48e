"""What is lost, and how long recovery takes, when processes die or work misbehaves."""
