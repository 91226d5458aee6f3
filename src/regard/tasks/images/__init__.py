"""Learning from images: a task a file, what comes of it, and what they share."""
