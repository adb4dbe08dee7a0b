"""Errors of the scheduling library. Each names the value at fault and the remedy.

Broken invariants carry the numbers that disagree.
"""


class WeirEngineError(Exception):
    """Base of all errors raised by the scheduling library."""


class ConfigError(WeirEngineError, ValueError):
    """A setting is outside its range; the message names the field and the allowed values."""


class InvariantError(WeirEngineError, RuntimeError):
    """An internal sum does not add up; the message holds the numbers. A defect, never bad input."""


class UnknownRequestError(WeirEngineError, KeyError):
    """A request id that was never added, or that has already ended."""


class DuplicateRequestError(WeirEngineError, ValueError):
    """A request id that is already present; every request needs an id of its own."""


class StateError(WeirEngineError, RuntimeError):
    """A transition that the request state machine does not have."""


class CapacityError(WeirEngineError, RuntimeError):
    """More blocks, slots or tokens were asked for than there are; the message says how many."""
