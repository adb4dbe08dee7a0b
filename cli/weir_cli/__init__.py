"""The ``weir`` command line.

Nothing imports it; it may import every component, lazily.
"""
