"""The offline pool: requests that wait, in the order that serves most of them.

The pool orders; the scheduler decides whether the next one fits.
"""
