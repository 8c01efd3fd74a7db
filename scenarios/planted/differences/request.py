"""A request that a planted fault has changed: text instead of ids, or other fields of the coupled draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scenarios.engines.engine_interface import Request

if TYPE_CHECKING:
    from scenarios.engines.coupling import Draw


@dataclass(frozen=True)
class PlantedRequest(Request):
    """A request with a fault. `prompt_text`: sent instead of the ids. `draw`: fields of `coupled_draw.PlantedDraw`."""

    prompt_text: str | None = None
    draw: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(request: Request) -> PlantedRequest:
        """Return the request in a form that a fault can change."""
        return request if isinstance(request, PlantedRequest) else PlantedRequest(**vars(request))

    @property
    def text(self) -> str | None:
        return self.prompt_text

    def drawn_by(self, draw: Draw) -> Draw:
        if not self.draw:
            return draw
        from scenarios.planted.differences.coupled_draw import PlantedDraw

        return PlantedDraw(**{**vars(draw), **self.draw})
