"""Latency models behind one protocol, one file a source; ``create`` makes one by name.

Scalar floats only on the way to a prediction: ``plan`` asks hundreds of times a step.
"""

from collections.abc import Mapping

from weir_engine.errors import ConfigError
from weir_engine.latency.models.attention import AttentionModel
from weir_engine.latency.models.base import LatencyModel
from weir_engine.latency.models.bros import BrosModel
from weir_engine.latency.models.echo import EchoModel
from weir_engine.latency.models.fitted import FittedModel
from weir_engine.latency.models.graphed import GraphedModel
from weir_engine.latency.models.hygen import HygenModel
from weir_engine.latency.models.linear import LinearModel
from weir_engine.latency.models.modulewise import ModulewiseModel

__all__ = [
    "MODEL_NAMES",
    "AttentionModel",
    "BrosModel",
    "EchoModel",
    "FittedModel",
    "GraphedModel",
    "HygenModel",
    "LatencyModel",
    "LinearModel",
    "ModulewiseModel",
    "create",
]

_BY_NAME: dict[str, type[FittedModel]] = {
    AttentionModel.name: AttentionModel,
    BrosModel.name: BrosModel,
    EchoModel.name: EchoModel,
    GraphedModel.name: GraphedModel,
    HygenModel.name: HygenModel,
    ModulewiseModel.name: ModulewiseModel,
}

MODEL_NAMES = tuple(_BY_NAME)
"""Names that ``create`` knows."""


def create(
    name: str = AttentionModel.name, state: Mapping[str, object] | None = None
) -> FittedModel:
    """A latency model by name, warmed by a saved ``state`` where one of the same model is given.

    Raises:
        ConfigError: an unknown name, or a state that is malformed or of another model.
    """
    if name not in _BY_NAME:
        raise ConfigError(f"latency.model is {name!r}: give one of {', '.join(sorted(_BY_NAME))}")
    kind = _BY_NAME[name]
    return kind() if state is None else kind.from_state(state)
