"""What the cases t* and u* know of the topology: the number of this process's engine, and the version of its sync."""
from blind_sabotage import around

NOW = {"engine": 0, "version": -1}


def engine():
    return NOW["engine"]


def version():
    return NOW["version"]


def session(module):
    """A patch of scenarios.session that keeps both up to date."""

    def init(original, self, *args, **kwargs):
        NOW["engine"] = int(kwargs.get("rank", 0))
        return original(self, *args, **kwargs)

    def sync(original, self, *args, **kwargs):
        NOW["version"] = kwargs["version"]
        return original(self, *args, **kwargs)

    around(module.EngineSession, "__init__", init)
    around(module.EngineSession, "sync", sync)
