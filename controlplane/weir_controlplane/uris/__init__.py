"""URIs that users name: which they may, and how their bytes are read and written."""
