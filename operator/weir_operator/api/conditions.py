"""The condition list that both kinds have in their status."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from weir_operator.api.base import ApiModel

MAX_MESSAGE_CHARS = 1_024


class Condition(ApiModel):
    """One aspect of the object's state."""

    type: str = Field(max_length=316, description="The aspect; docs/crds.md lists them.")
    status: Literal["True", "False", "Unknown"] = Field(
        description="Whether the aspect holds: True, False or Unknown."
    )
    observed_generation: int = Field(
        ge=0, description="metadata.generation of the spec that this condition speaks of."
    )
    last_transition_time: datetime = Field(description="When status last changed.")
    reason: str = Field(
        min_length=1,
        max_length=128,
        description="Why, in one stable word for programs; docs/crds.md lists them.",
    )
    message: str = Field(
        max_length=MAX_MESSAGE_CHARS, description="Why, for people, with the remedy."
    )
