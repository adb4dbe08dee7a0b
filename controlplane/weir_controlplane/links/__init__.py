"""Signed links to results: who has one needs no key until it expires."""
