"""Planted faults of the router in front of several engines, and of its requests. They patch the live engine."""

from __future__ import annotations

from typing import Any

from scenarios.planted.differences.plant import Plant, Setting


class OnLiveEngine(Plant):
    """Replaces one method of the live engine by `planted`, until the fault is removed."""

    method = ""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.own = getattr(setting.engine, self.method)
        setattr(setting.engine, self.method, self.planted)

    def planted(self, *arguments: Any) -> Any:
        raise NotImplementedError

    def remove(self) -> None:
        delattr(self.setting.engine, self.method)


class FirstOnly(OnLiveEngine):
    """The router knows only the first engine. Setting: true, on the engine that starts the router."""

    method = "start_router"

    def planted(self, *arguments: Any) -> Any:
        engines, policy = arguments
        return self.own(engines[:1], policy)


class AskedAgain(OnLiveEngine):
    """The first request of each batch is sent twice, and its first answer is lost. Setting: true."""

    method = "through_router"

    def planted(self, *arguments: Any) -> Any:
        self.own(*(part[:1] for part in arguments))
        return self.own(*arguments)
