"""Python runs this file at the start of every process of a watched command, because PYTHONPATH begins with its
folder.

It runs the sitecustomize that it replaces, and loads nothing else until the process imports torch.distributed or Ray,
runs an event loop, or loses a thread by an uncaught error. Another process only pays for reading two
variables.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_TRIGGERS = {"torch.distributed.distributed_c10d", "ray._private.worker", "threading", "asyncio.events"}
_HOOK = "rlhf_harness_ray.environment"
_ADAPTER, _, _PACKAGES = os.environ.get("RLHF_HARNESS_ADAPTER", "").rpartition(":")
_TRIGGERS.update(_PACKAGES.split(",") if _PACKAGES else ())
_loaded = None  # our modules, kept here where the job has another package called `probes`


class _Imports:
    """A finder that finds nothing itself. It calls the probes when a module of interest has been imported."""

    busy = False

    def find_spec(self, name, path=None, target=None):
        if name not in _TRIGGERS or self.busy:
            return None
        # Ask the other finders as the import system would, since only their loader can be followed. One of them may
        # import something itself: `busy` lets that pass.
        self.busy = True
        try:
            for finder in list(sys.meta_path):
                find = None if finder is self else getattr(finder, "find_spec", None)
                spec = None if find is None else find(name, path, target)
                if spec is not None:
                    self._follow(spec.loader)
                    return spec
            return None
        finally:
            self.busy = False

    def _follow(self, loader):
        if isinstance(loader, type):  # a loader class of built-in modules: one for all of them
            return
        try:
            run, attributes = loader.exec_module, vars(loader)
        except (AttributeError, TypeError):  # a namespace package has no loader; some loaders do not allow it
            return

        def exec_module(module):
            attributes.pop("exec_module", None)  # a loader of several modules may be restored already
            if module.__name__ in _PACKAGES.split(","):
                _attach()  # before it runs: the modules that it imports must find the hooks ready
            run(module)
            _TRIGGERS.discard(module.__name__)
            if not _TRIGGERS and self in sys.meta_path:
                sys.meta_path.remove(self)
            # Every process imports these two. They alone do not make it a process of the job: what it does next may.
            if module.__name__ in _WATCHES:
                _WATCHES[module.__name__](module)
                return
            if module.__name__ == "ray._private.worker":
                _tell_ray(module)
            _attach()

        try:  # noqa: SIM105 -- contextlib is one more import for every process
            loader.exec_module = exec_module
        except (AttributeError, TypeError):
            pass


def _tell_ray(module):
    """Make ray.init call our hook: set the variable that names the hook, only while ray.init runs.

    A child process that does not see this folder could not import the hook, and its own ray.init would fail.
    """
    import functools

    init = getattr(module, "init", None)
    if init is None:
        return

    @functools.wraps(init)
    def init_with_hook(*args, **kwargs):
        if "RAY_RUNTIME_ENV_HOOK" in os.environ:  # the user's own
            return init(*args, **kwargs)
        os.environ["RAY_RUNTIME_ENV_HOOK"] = _HOOK
        try:
            return init(*args, **kwargs)
        finally:
            if os.environ.get("RAY_RUNTIME_ENV_HOOK") == _HOOK:
                del os.environ["RAY_RUNTIME_ENV_HOOK"]

    module.init = init_with_hook


def _watch_threads(threading):
    """Record a process from the moment at which it loses a thread: Python prints the error, and the process goes on."""
    before = threading.excepthook

    def excepthook(args):
        if args.exc_type is not SystemExit and not sys.is_finalizing():
            _attach(args)
        before(args)

    excepthook.of_harness = True  # type: ignore[attr-defined]
    threading.excepthook = excepthook


def _watch_loops(events):
    """Record a process from the moment at which it runs an event loop, whose tasks no stack shows.

    Each event loop, also uvloop's, says to this function of asyncio that it runs.
    """
    before = events._set_running_loop

    def _set_running_loop(loop):
        before(loop)
        if loop is None:
            return
        if _note_loop is None:
            _attach()
        if _note_loop is not None:
            _note_loop(loop)

    events._set_running_loop = _set_running_loop


_WATCHES = {"threading": _watch_threads, "asyncio.events": _watch_loops}
_note_loop = None  # `probes.event_loops.note`, once the probes are loaded


def _attach(lost=None):
    """Record this process. `lost`: what `threading.excepthook` is given of a thread that has just ended."""
    global _note_loop
    directory = os.environ.get("RLHF_HARNESS_WATCH")
    if not directory:
        return
    try:
        attach, adapters, adapter = _probes()
        attach.begin(directory)
        _note_loop = attach.event_loops.note
        if lost is not None:
            attach.lost_threads.remember(lost)
        if adapter is not None:
            adapters.begin(directory, adapter)
    except Exception as error:  # the job goes on whatever a probe does; the watch directory says that it is off
        _note_loop = _note_loop or id  # which does nothing
        _failed(directory, error)


def _probes():
    """Return `probes.attach`, and `probes.adapters` and the framework's adapter where the job has one.

    Our modules are in sys.modules only where the job would find our package anyway, never in place of its own.
    """
    global _loaded
    import importlib
    import importlib.util

    def load():
        attach = importlib.import_module("probes.attach")
        adapters = importlib.import_module("probes.adapters") if _ADAPTER else None
        return attach, adapters, adapters.load(_ADAPTER) if adapters is not None else None

    package = os.path.dirname(_HERE)
    origin = os.path.join(package, "__init__.py")
    spec = importlib.util.find_spec("probes")
    ours = spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(origin)
    if ours:
        return load()
    if _loaded is not None:
        return _loaded
    # The job may have a package of our name, imported or not. Its modules are put aside while ours are loaded, and put
    # back whatever happens.
    theirs = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "probes"}
    try:
        spec = importlib.util.spec_from_file_location("probes", origin, submodule_search_locations=[package])
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["probes"] = module
        spec.loader.exec_module(module)
        _loaded = load()
        sys.modules["_rlhf_harness_attach"] = _loaded[0]
        return _loaded
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "probes"]:
            del sys.modules[name]
        sys.modules.update(theirs)


def _failed(directory, error):
    import json

    try:
        os.makedirs(os.path.join(directory, "beats"), mode=0o700, exist_ok=True)
        path = os.path.join(directory, "beats", f"{os.getpid()}.failed")
        with open(path, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as stream:
            json.dump({"pid": os.getpid(), "failed": f"{type(error).__name__}: {error}"[:500]}, stream)
    except OSError:  # there is no place to report it
        pass


def _next():
    """Run the sitecustomize that this one replaces."""
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    search_path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", search_path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _without_the_empty_entry():
    """Remove the empty PYTHONPATH entry that Ray leaves where a worker has no PYTHONPATH to fill ${PYTHONPATH} with.

    An empty entry is the working directory, and it would come before the standard library.
    """
    if os.environ.get("PYTHONPATH") == _HERE + os.pathsep:
        os.environ["PYTHONPATH"] = _HERE
        after = sys.path.index(_HERE) + 1 if _HERE in sys.path else 0
        if after and sys.path[after : after + 1] in ([""], [os.getcwd()]):
            del sys.path[after]


if os.environ.get("RLHF_HARNESS_WATCH"):
    _without_the_empty_entry()
    # What was imported before this file ran is not found again: it is hooked where it is.
    for _name in _TRIGGERS & _WATCHES.keys() & sys.modules.keys():
        _TRIGGERS.discard(_name)
        _WATCHES[_name](sys.modules[_name])
    sys.meta_path.insert(0, _Imports())
_next()
