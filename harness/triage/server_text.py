"""What the handlers of a server's routes await, and who brings it, by the server's source text.

From outside a task of an event loop is in no stack. Where the text is plain enough, it still says in which places a
handler can stand, and which functions can end each of these waits. Plain enough means: the routes, their handlers and
what they await are in one file; each awaited object is a lock, condition or event of asyncio that the file makes once
and that it uses by its name alone; nothing that touches it runs anywhere but in a handler. Whatever is not so makes
the answer None, which decides nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from harness.triage import source
from harness.triage.evidence import Frame

Function = ast.FunctionDef | ast.AsyncFunctionDef
MOST_NODES = 50_000  # of the syntax tree of a file: about 6,000 lines, of which one function is followed in 0.1 s
MOST_CALLS = 100  # functions that are followed from one handler
_OBJECTS = frozenset({"asyncio.Event", "asyncio.Condition", "asyncio.Lock"})
_WAITS = frozenset({"wait", "wait_for", "acquire"})
_BRINGS = frozenset({"set", "notify", "notify_all", "release"})
_READ_ALREADY = frozenset({"json", "read", "text", "body", "form", "post"})  # the client has sent it before it waits
_RUNS = frozenset({"asyncio.run", "run_until_complete"})


@dataclass(frozen=True)
class Keys:
    """What pending handlers need. `handlers`: their names. `routes`: without a request to which of them none of these
    handlers goes on; nobody but another handler that stands brings the rest."""

    handlers: tuple[str, ...]
    routes: tuple[str, ...]


def keys(server: Sequence[Frame], pending: Sequence[str], waited_s: float) -> Keys | None:
    """Which requests let the handlers of these pending routes go on; None if the text leaves open in what they stand.

    `server`: the main thread's frames of the user's code, innermost first. `waited_s`: for how long none has answered.
    """
    tree = source.tree_of(server[0].file) if server and len({frame.file for frame in server}) == 1 else None
    program = _Program.of(tree) if tree is not None else None
    if program is None or any(route not in program.routes for route in pending):
        return None
    if not program.passes_on():
        return None
    handlers = tuple(dict.fromkeys(program.routes[route] for route in pending))
    awaited: set[str] = set()
    for handler in handlers:
        its = program.awaited(handler, waited_s)
        if not its:  # None: not known; nothing: then it should have answered
            return None
        awaited |= its
    users: set[str] = set()
    for name in awaited:
        its_users = program.users(name, server)
        if its_users is None:
            return None
        users |= its_users
    routes = tuple(sorted(route for route, handler in program.routes.items() if handler in users - set(handlers)))
    return Keys(handlers, routes)


def asks_behind(frames: Sequence[Frame], route: str) -> Frame | None:
    """The place where a function of these frames asks for a route behind its line; None if another place of the same
    file asks for it as well, which somebody else may have reached."""
    for frame in frames:
        tree = source.tree_of(frame.file)
        texts = [node for node in (ast.walk(tree) if tree is not None else ())
                 if isinstance(node, ast.Constant) and str(node.value).endswith(route)]  # fmt: skip
        body = source.function_of(frame)
        behind = [text for text in texts if body is not None and source.holds(body, text.lineno)
                  and text.lineno > frame.line]  # fmt: skip
        registered = [path for path, *_ in _registered(tree) if path.endswith(route)] if tree is not None else []
        if behind and len(texts) == len(behind) + len(registered):
            return Frame(frame.function, frame.file, behind[0].lineno)
    return None


def limited(frames: Sequence[Frame], *, timed: bool) -> bool:
    """Whether the wait of these frames may end soon by a time limit. `timed`: by the kernel it has one. Then the text
    must have a long one as a number."""
    long = False
    for frame in frames:
        body = source.function_of(frame)
        for call in (node for node in (ast.walk(body) if body is not None else ()) if isinstance(node, ast.Call)):
            for word in call.keywords if source.holds(call, frame.line) else ():
                seconds = word.value.value if isinstance(word.value, ast.Constant) else None
                if word.arg in (None, "timeout"):
                    long = isinstance(seconds, (int, float)) and seconds >= source.LONG_S
                    if not long:
                        return True
    return timed and not long


@dataclass(frozen=True)
class _Step:
    """What a part of a handler awaits: objects of asyncio, functions of the file that it runs, a sleep."""

    objects: frozenset[str] = frozenset()
    calls: tuple[str, ...] = ()
    slept_s: float = 0.0


@dataclass(frozen=True)
class _Program:
    """One file of a server. `routes`: path -> name of its handler. `functions` by name, each of which is unique."""

    tree: ast.Module
    functions: dict[str, Function]
    routes: dict[str, str]
    objects: frozenset[str]  # names of locks, conditions and events that the file makes once
    instances: frozenset[str]  # names of objects of its own classes that it makes once

    @staticmethod
    @lru_cache(maxsize=16)
    def of(tree: ast.Module) -> _Program | None:
        """None if two functions, or two handlers of a path, have one name, a coroutine is started without being
        awaited where it is called, or something that awaits runs before a handler."""
        if sum(1 for _ in ast.walk(tree)) > MOST_NODES:
            return None
        definitions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        functions = {node.name: node for node in definitions if not node.name.startswith("__")}
        if len(functions) != len([node for node in definitions if not node.name.startswith("__")]):
            return None
        awaited = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Await)}
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if ast.unparse(call.func).endswith(tuple(_RUNS)):
                awaited |= {id(argument) for argument in call.args}
            if isinstance(functions.get(_last(call.func)), ast.AsyncFunctionDef) and id(call) not in awaited:
                return None
        words = {_last(node).lower() for node in ast.walk(tree) if isinstance(node, (ast.Name, ast.Attribute))}
        if "depends" in words or any("middleware" in word for word in words):
            return None  # what runs before a handler may await anything
        routes: dict[str, str] = {}
        for path, handler, _ in _registered(tree):
            if handler not in functions or routes.setdefault(path, handler) != handler:
                return None
        classes = frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        return _Program(tree, functions, routes, _made_once(tree, _OBJECTS), _made_once(tree, classes))

    def awaited(self, handler: str, waited_s: float) -> set[str] | None:
        """The objects of which a handler may await one; None if it may await anything else. Sleeps that are over after
        `waited_s` are none of it."""
        names: set[str] = set()
        slept_s, queue = 0.0, [(handler, 1.0)]
        for _ in range(MOST_CALLS):
            if not queue:
                return names if slept_s < waited_s else None
            name, outer = queue.pop()
            for node, rounds in _own(self.functions[name], outer):
                step = self._step(node, self.functions[name])
                if step is None:
                    return None
                names |= step.objects
                slept_s += step.slept_s * rounds if step.slept_s else 0.0
                queue += [(function, rounds) for function in step.calls]
        return None

    def passes_on(self) -> bool:
        """Whether every coroutine of the file that no handler runs awaits nothing but what it is given and an entry of
        a table, as an application does that calls the handlers."""
        reached, queue = set(), list(self.routes.values())
        while queue:
            if (name := queue.pop()) not in reached:
                reached.add(name)
                calls = [node for node, _ in _own(self.functions[name], 1.0) if isinstance(node, ast.Call)]
                queue += [called.name for call in calls if (called := self._called(call.func)) is not None]
        return all(
            not isinstance(node, (ast.AsyncFor, ast.AsyncWith))
            and not (isinstance(node, ast.Await) and not _is_given(node.value, function))
            for name, function in self.functions.items()
            if name not in reached and isinstance(function, ast.AsyncFunctionDef)
            for node, _ in _own(function, 1.0)
        )

    def _step(self, node: ast.AST, function: Function) -> _Step | None:
        """What a node of a function awaits; None if that is not known."""
        if isinstance(node, (ast.AsyncFor, ast.Yield, ast.YieldFrom)):
            return None
        if isinstance(node, ast.AsyncWith):
            entered = frozenset(_last(item.context_expr) for item in node.items)
            return _Step(entered) if entered <= self.objects else None
        if isinstance(node, ast.Await):
            return self._awaited(node.value, function)
        called = self._called(node.func) if isinstance(node, ast.Call) else None
        return _Step(calls=(called.name,)) if isinstance(called, ast.FunctionDef) else _Step()

    def _awaited(self, call: ast.expr, function: Function) -> _Step | None:
        if not isinstance(call, ast.Call):
            return None
        if isinstance(called := self._called(call.func), ast.AsyncFunctionDef):
            return _Step(calls=(called.name,))
        if (seconds := _slept_s(call)) is not None:
            return _Step(slept_s=seconds)
        receiver, method = _last(getattr(call.func, "value", call.func)), _last(call.func)
        if method in _WAITS and receiver in self.objects:
            return _Step(frozenset({receiver}))
        return _Step() if method in _READ_ALREADY and receiver in _parameters(function) else None

    def _called(self, function: ast.expr) -> Function | None:
        """The function of the file that a call runs: by its name, or as a method of `self` or of the one object that
        the file makes of its class."""
        its = self.functions.get(_last(function))
        if its is None or not isinstance(function, (ast.Name, ast.Attribute)):
            return None
        is_method = its.args.args[:1] != [] and its.args.args[0].arg == "self"
        if isinstance(function, ast.Name):
            return None if is_method else its
        return its if is_method and _last(function.value) in ("self", *self.instances) else None

    def users(self, name: str, server: Sequence[Frame]) -> set[str] | None:
        """The handlers in which something is brought to an object, itself or in what they call; None if anything else
        may bring it. What the server's main thread did before the line where it stands is over."""
        used = {id(part) for part in _uses(self.tree, name)}
        mentions = [node for node in ast.walk(self.tree)
                    if isinstance(node, (ast.Name, ast.Attribute)) and _last(node) == name
                    and isinstance(node.ctx, ast.Load)]  # fmt: skip
        if any(id(mention) not in used for mention in mentions):
            return None  # it is passed on, under another name say
        users, queue, visited = set(), [], set()
        made = [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
        for node in _bringing(self.tree, name):
            if any(source.holds(its, node.lineno) for its in made):
                continue  # the object is new there
            if (function := self._around(node)) is None:
                return None
            queue.append(function)
        while queue:
            function = queue.pop()
            if function in visited:
                continue
            visited.add(function)
            if len(visited) > MOST_CALLS:
                return None
            callers, is_handler = self._callers(function), function in self.routes.values()
            if is_handler:
                users.add(function)
            if None in callers or not (callers or is_handler):
                if not self._is_past(function, name, server):
                    return None
                continue
            queue += [caller for caller in callers if caller]
        return users

    def _callers(self, function: str) -> set[str | None]:
        """The functions that call one; None among them where it is called by the module, or used without a call."""
        called = {id(node.func) for node in ast.walk(self.tree) if isinstance(node, ast.Call)}
        registered = {id(node) for _, _, node in _registered(self.tree)}
        uses = [node for node in ast.walk(self.tree) if isinstance(node, (ast.Name, ast.Attribute))
                and _last(node) == function and id(node) not in registered]  # fmt: skip
        return {self._around(node) if id(node) in called else None for node in uses}

    def _is_past(self, function: str, name: str, server: Sequence[Frame]) -> bool:
        """Whether the server's main thread has passed every place in this function that brings something."""
        frame = next((frame for frame in server if frame.function.rpartition(".")[2] == function), None)
        body = self.functions[function]
        own = [node for node, _ in _own(body, 1.0)]
        loops = [node for node in ast.walk(body) if isinstance(node, (ast.For, ast.While, ast.AsyncFor))]
        return frame is not None and all(
            node.lineno < frame.line and not any(source.holds(loop, frame.line) for loop in loops)
            for node in _bringing(body, name) if node in own
        )  # fmt: skip

    def _around(self, node: ast.expr) -> str | None:
        """The innermost function around a node."""
        around = [each for each in self.functions.values()
                  if each.lineno <= node.lineno and (node.end_lineno or 0) <= (each.end_lineno or 0)]  # fmt: skip
        return max(around, key=lambda each: each.lineno).name if around else None


def _own(body: ast.AST, rounds: float) -> Iterator[tuple[ast.AST, float]]:
    """The nodes of a function without those of functions in it, each with how often it runs at most."""
    for child in ast.iter_child_nodes(body):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        times = rounds
        if isinstance(child, (ast.While, ast.AsyncFor)):
            times = float("inf")
        elif isinstance(child, ast.For):
            times = rounds * _rounds(child.iter)
        yield child, rounds
        yield from _own(child, times)


def _rounds(iterated: ast.expr) -> float:
    if isinstance(iterated, ast.Call) and _last(iterated.func) == "range" and len(iterated.args) == 1:
        count = iterated.args[0]
        if isinstance(count, ast.Constant) and isinstance(count.value, int):
            return float(count.value)
    return float("inf")


def _slept_s(call: ast.expr) -> float | None:
    """The seconds of `asyncio.sleep` with a number; infinite for another one; None if it is no sleep."""
    if not isinstance(call, ast.Call) or ast.unparse(call.func) not in ("asyncio.sleep", "sleep"):
        return None
    value = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
    return float(value) if isinstance(value, (int, float)) else float("inf")


def _last(node: ast.AST) -> str:
    """The last name of a dotted one."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _parameters(function: Function) -> set[str]:
    return {argument.arg for argument in function.args.args}


def _is_given(call: ast.expr, function: Function) -> bool:
    called = call.func if isinstance(call, ast.Call) else None
    return isinstance(called, ast.Subscript) or (isinstance(called, ast.Name) and called.id in _parameters(function))


def _registered(tree: ast.Module) -> Iterator[tuple[str, str, ast.expr]]:
    """The routes of a file, each with the name of its handler and where it stands: of a table, a call such as
    `add_post` or `Route`, or a decorator."""
    names = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    for node in ast.walk(tree):
        pairs: list[tuple[list[ast.expr], list[ast.expr]]] = []
        if isinstance(node, ast.Dict):
            pairs = [([key], [value]) for key, value in zip(node.keys, node.values, strict=True) if key is not None]
        elif isinstance(node, ast.Call):
            pairs = [(node.args, [*node.args, *(word.value for word in node.keywords)])]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            calls = [call for call in node.decorator_list if isinstance(call, ast.Call)]
            pairs = [(call.args, [ast.Name(node.name, ast.Load())]) for call in calls]
        for texts, values in pairs:
            paths = [text.value for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str)]
            handlers = [value for value in values if _last(value) in names]
            if len(paths) == len(handlers) == 1 and paths[0].startswith("/"):
                yield paths[0], _last(handlers[0]), handlers[0]


def _made_once(tree: ast.Module, makers: frozenset[str]) -> frozenset[str]:
    """The names that a file binds once, to the result of a call of one of these."""
    made: list[str] = []
    bound: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
            bound.append(_last(node))
        if isinstance(node, ast.arg):
            bound.append(node.arg)
        if isinstance(node, ast.Assign):
            for target in node.targets:
                made += [_last(name) for name, value in source.pairs(target, node.value)
                         if isinstance(value, ast.Call) and ast.unparse(value.func) in makers]  # fmt: skip
    return frozenset(name for name in made if bound.count(name) == 1)


def _uses(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    """The places where an object of this name is used in a way that is known: a method is called, or it is entered."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _last(node.func.value) == name:
            yield node.func.value
        for item in node.items if isinstance(node, ast.AsyncWith) else ():
            if _last(item.context_expr) == name:
                yield item.context_expr


def _bringing(tree: ast.AST, name: str) -> list[ast.expr]:
    """The places where something is brought to an object of this name: it is set, notified or released."""
    entered = [item.context_expr for node in ast.walk(tree) if isinstance(node, ast.AsyncWith) for item in node.items]
    called = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
              and node.func.attr in _BRINGS and _last(node.func.value) == name]  # fmt: skip
    return [*called, *(each for each in entered if _last(each) == name)]
