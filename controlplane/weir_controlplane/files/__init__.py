"""Files: their bytes in the file store, their rows, and their endpoints."""
