"""What the source text says about the place where a process stands, if the file can be read here.

Each question is answered from the syntax tree and never guessed. Is a line inside an `except`, under an `if` that
asks for the rank, in a loop without an end, in a loop that repeats until something has come, in a loop that continues
after an error, or behind a loop that contains another line? Does its function hand something on, or ask if processes
have ended? Does the line wait for a device, or sleep, and for how long? Does it wait for the notification of a
condition, or make it later? Does its loop put something somewhere in each round, look only at objects of its own
process, sleep somewhere, or go on to something else behind the line? Does another function bring what the line waits
for, and which objects does a thread alone fill? Locks are in `lock_text`, branches on the way to a line in `gate_text`.
A file that is absent, too large, or does not have the frame's function at that line (it changed since) answers nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache
from pathlib import Path

from harness.triage.evidence import Frame

MAX_BYTES = 2 << 20  # bytes of source text; larger files are generated and not read
MAX_BASE, MAX_EXPONENT = 1000.0, 20.0  # of a power that is computed; a larger one is no length of a sleep
# Words of a condition that asks for the rank: `rank`, `local_rank`, `get_rank()`, `rank_zero`, and no `reranker` or
# `lora_rank`.
_RANK = re.compile(
    r"(?<![a-z])(?<!lora_)(?<!low_)ranks?(?![a-z])|is_main|is_master|is_leader|main_process|is_first", re.IGNORECASE
)
_READS_RANK = frozenset({"get_rank", "get_node_rank", "get", "getenv", "int", "bool", "str"})  # calls in `r = ...`


def handler_line(frame: Frame) -> int:
    """The line of the innermost `except` in which a frame stands: its exception has been swallowed. 0 without one."""
    body = function_of(frame)
    handlers = (node for node in (ast.walk(body) if body is not None else ()) if isinstance(node, ast.ExceptHandler))
    return max((node.lineno for node in handlers if any_holds(node.body, frame.line)), default=0)


def rank_condition(frame: Frame) -> str:
    """The text of the innermost `if` around a frame that asks for a rank; empty without one."""
    body = function_of(frame)
    if body is None:
        return ""
    condition = ""
    for node in ast.walk(body):
        if not isinstance(node, ast.If) or not any(holds(part, frame.line) for part in node.body):
            continue
        if asks_for_rank(node.test, frame.file):
            condition = ast.unparse(node.test)
    return condition


def asks_for_rank(condition: ast.expr, file: str) -> bool:
    """Whether a condition in this file asks for the rank, by its words or by a name that the file gave the rank."""
    return bool(_RANK.search(ast.unparse(condition)) or names_in(condition) & _rank_names(file))


@lru_cache(maxsize=256)
def _rank_names(file: str) -> frozenset[str]:
    """The names that a file gives a rank, or what it asks of one: `r = dist.get_rank()`, `self.leads = rank == 0`."""
    tree = tree_of(file)
    pairs = list[tuple[ast.expr, ast.expr]]()
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assign):
            pairs += ((target, node.value) for target in node.targets)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            pairs.append((node.target, node.value))
    for target, value in list(pairs):
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs += zip(target.elts, value.elts, strict=False)
    return frozenset(ast.unparse(target) for target, value in pairs if _is_of_rank(value))


def _is_of_rank(value: ast.expr) -> bool:
    """Whether a value is a rank or a question about one, and nothing that was made or loaded by a rank."""
    nodes = list(ast.walk(value))
    calls = {ast.unparse(node.func).rpartition(".")[2] for node in nodes if isinstance(node, ast.Call)}
    made = (ast.Constant, ast.JoinedStr, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Lambda)
    return not isinstance(value, made) and calls <= _READS_RANK and bool(_RANK.search(ast.unparse(value)))


def endless_loop(frame: Frame) -> bool:
    """Whether the innermost loop around a frame is `while True`, which is how a program waits for work."""
    body = function_of(frame)
    loops = [
        node
        for node in (ast.walk(body) if body is not None else ())
        if isinstance(node, (ast.For, ast.While, ast.AsyncFor)) and any(holds(part, frame.line) for part in node.body)
    ]
    return bool(loops) and isinstance(loops[-1], ast.While) and ast.unparse(loops[-1].test) in ("True", "1")


LONG_S = 600.0  # NCCL's default timeout in torch, after which those who wait fail: a longer wait is no pause


class Loop(Enum):
    """The innermost loop around a line.

    `UNTIL`: it repeats until something has come, by its condition or by a way out in its body. `ENDLESS`: it has no way
    out. `ROUNDS`: it goes through a fixed number of rounds, whatever comes.
    """

    NONE = "none"
    UNTIL = "until"
    ENDLESS = "endless"
    ROUNDS = "rounds"
    UNKNOWN = "unknown"  # the source text cannot be read


def loop_around(frame: Frame) -> Loop:
    """The kind of loop in which a frame stands, within its own function."""
    body = function_of(frame)
    if body is None:
        return Loop.UNKNOWN
    innermost = innermost_loop(frame)
    if innermost is None:
        return Loop.NONE
    if isinstance(innermost, ast.While) and not isinstance(innermost.test, ast.Constant):
        return Loop.UNTIL
    if any(isinstance(node, (ast.Break, ast.Return)) for part in innermost.body for node in ast.walk(part)):
        return Loop.UNTIL
    return Loop.ENDLESS if isinstance(innermost, ast.While) else Loop.ROUNDS


def spins(frame: Frame) -> bool:
    """Whether the loop around a line only asks its condition again and again: `while not ready: pass`."""
    loop = innermost_loop(frame)
    idle = (ast.Pass, ast.Continue)
    return isinstance(loop, ast.While) and not loop.orelse and all(isinstance(part, idle) for part in loop.body)


@lru_cache(maxsize=4096)
def trains(frame: Frame) -> bool:
    """Whether each round of the loop around a line goes through a backward pass or a collective of torch.distributed.

    Such a round needs the other ranks, so a sleep in it does not look for anything. A collective under a condition does
    not count: a loop that polls may have one for its last round.
    """
    loop = innermost_loop(frame)
    return loop is not None and bool(_called_each_time(loop.body) & _OF_TRAINING)


def _called_each_time(statements: Iterable[ast.stmt]) -> set[str]:
    """Return the methods that these statements call whatever the conditions among them say."""
    names = set[str]()
    for statement in statements:
        if isinstance(statement, (ast.With, ast.AsyncWith, ast.Try)):
            names |= _called_each_time(statement.body)
        elif isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign)):
            names |= _called(statement)
    return names


def asks_for_children(frame: Frame) -> bool:
    """Whether the function of a frame asks if processes have ended."""
    body = function_of(frame)
    names = {node.attr for node in ast.walk(body) if isinstance(node, ast.Attribute)} if body is not None else set()
    return bool(names & _OF_CHILDREN)


_OF_CHILDREN = frozenset({"poll", "is_alive", "returncode", "exitcode", "waitpid", "wait"})


def outlives_error(frames: Sequence[Frame]) -> int:
    """The line of an `except` that catches every error of a call in these frames, and after which a loop around it
    continues.

    `frames` are innermost first. 0 if there is none.
    """
    for at, frame in enumerate(frames):
        body = function_of(frame)
        for node in ast.walk(body) if body is not None else ():
            if not isinstance(node, ast.Try) or not any(holds(part, frame.line) for part in node.body):
                continue
            handler = next(filter(_catches_all, node.handlers), None)
            if handler is None or _leaves(handler, ast.Raise) or _ENDS & _called(handler):
                continue
            again = _in_loop(frame, node) and not _leaves(handler, ast.Return, ast.Break)
            if again or any(_in_loop(outer) for outer in frames[at + 1 :]):
                return handler.lineno
    return 0


_ENDS = frozenset({"exit", "_exit", "abort"})  # calls that end the process


def _catches_all(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or any(
        isinstance(node, ast.Name) and node.id in ("Exception", "BaseException") for node in ast.walk(handler.type)
    )


def _leaves(handler: ast.ExceptHandler, *how: type[ast.stmt]) -> bool:
    return any(isinstance(node, how) for part in handler.body for node in ast.walk(part))


def _in_loop(frame: Frame, within: ast.AST | None = None) -> bool:
    """Whether a loop of the function contains a frame's line, and `within` as well."""
    body = function_of(frame)
    return any(
        isinstance(node, (ast.For, ast.While, ast.AsyncFor))
        and any(holds(part, frame.line) for part in node.body)
        and (within is None or node.lineno < getattr(within, "lineno", 0))
        for node in (ast.walk(body) if body is not None else ())
    )


# Calls with which a thread ends the wait of another thread.
_HANDS_ON = frozenset({
    "put", "put_nowait", "send", "send_bytes", "set_result", "set_exception", "set", "notify", "notify_all", "release",
    "call_soon_threadsafe", "sendall", "sendto", "sendmsg", "send_multipart", "send_json", "send_pyobj", "terminate",
    "kill",
})  # fmt: skip
_OF_DEVICE = frozenset({"item", "cpu", "tolist", "numpy", "synchronize", "nonzero", "unique", "masked_select"})
_OF_VALUE = frozenset({"float", "int", "bool"})  # for a tensor, these fetch its value


def hands_on(frame: Frame) -> bool:
    """Whether the function of a frame calls something that may end another thread's wait; True if its text cannot be
    read."""
    body = function_of(frame)
    return body is None or any(name in _HANDS_ON for name in _called(body))


def in_timer(frame: Frame) -> bool:
    """Whether a frame is that of a `threading.Timer`, which calls a function after a while."""
    tree = tree_of(frame.file) if frame.file.endswith("/threading.py") else None
    nodes = ast.walk(tree) if tree is not None else ()
    return any(isinstance(node, ast.ClassDef) and node.name == "Timer" and holds(node, frame.line) for node in nodes)


def has_time_limit(frame: Frame) -> bool:
    """Whether a frame of Python's own threads waits at a line that passes a time limit on, as `Condition.wait` does."""
    body = function_of(frame) if frame.file.endswith("/threading.py") else None
    calls = (node for node in (ast.walk(body) if body is not None else ()) if isinstance(node, ast.Call))
    return any(
        holds(call, frame.line) and any(isinstance(part, ast.Name) and part.id == "timeout" for part in call.args)
        for call in calls
    )


# Calls that put something where others look for it.
_MAKES = frozenset({"append", "appendleft", "add", "extend", "insert", "update", "put", "put_nowait", "set_result"})
# Calls that look at objects of the own process, or only pass the time.
_LOOKS_INSIDE = frozenset({"len", "empty", "is_set", "qsize", "done", "sleep", "time", "monotonic", "print", "info",
                           "debug", "warning"})  # fmt: skip


def makes(frame: Frame) -> bool:
    """Whether the innermost loop around a frame puts something somewhere in each of its rounds: into a list, a queue,
    a key. What it does under a condition may never come."""
    loop = innermost_loop(frame)
    pending: list[ast.AST] = list(loop.body) if loop is not None else []
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.With, ast.Try)):
            pending += node.body
        elif isinstance(node, (ast.Expr, ast.Assign)):
            stores = any(isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store) for part in ast.walk(node))
            if stores or _MAKES & _called(node):
                return True
    return False


_BRINGS = _MAKES | {"set", "notify", "notify_all"}


def bringing(frame: Frame) -> dict[str, int]:
    """The other functions of the file that bring the notification, event or item of a queue for which the line of a
    frame waits, each with the line at which it does so."""
    body, tree = function_of(frame), tree_of(frame.file)
    awaited = {
        ast.unparse(node.func.value)
        for node in (ast.walk(body) if body is not None else ())
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and holds(node, frame.line)
        if node.func.attr in ("wait", "wait_for", "get")
    }
    others = (node for node in (ast.walk(tree) if tree is not None else ()) if isinstance(node, ast.FunctionDef))
    return {
        other.name: node.lineno
        for other in others
        if not holds(other, frame.line)
        for node in ast.walk(other)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _BRINGS
        and ast.unparse(node.func.value) in awaited
    }


def brought_elsewhere(frame: Frame) -> bool:
    """Whether the line of a frame waits for a notification, an event or an item of a queue that another function of the
    file brings."""
    return bool(bringing(frame))


@lru_cache(maxsize=256)
def filled_alone(file: str, thread_name: str) -> frozenset[str]:
    """The objects, in the words of the text, into which the function that a thread of this name runs puts something,
    that other functions of the file use, and into which none of them puts anything but at its construction.

    The name is the thread's own, or "Thread-1 (function)".
    """
    tree = tree_of(file)
    functions = [node for node in (ast.walk(tree) if tree is not None else ()) if isinstance(node, ast.FunctionDef)]
    target = thread_name.rpartition(" (")[2].removesuffix(")") if " (" in thread_name else _target(tree, thread_name)
    mine = [function for function in functions if function.name == target]
    if len(mine) != 1:
        return frozenset()
    # A function around it, or inside it, is no other user of what it fills.
    apart = [each for each in functions if not (holds(each, mine[0].lineno) or holds(mine[0], each.lineno))]
    used = {name for function in apart for name in names_in(function)}
    by_others = {name for each in apart if each.name != "__init__" for name in _filled(each)}
    return frozenset((_filled(mine[0]) & used) - by_others)


def names_in(node: ast.AST) -> set[str]:
    """The names and attributes in a part of a text, such as `items` and `self.items`."""
    return {ast.unparse(part) for part in ast.walk(node) if isinstance(part, (ast.Name, ast.Attribute))}


def _target(tree: ast.Module | None, thread_name: str) -> str:
    """The function that a thread is started with under this name; empty if the text does not say one."""
    for call in (node for node in (ast.walk(tree) if tree is not None else ()) if isinstance(node, ast.Call)):
        words = {word.arg: ast.unparse(word.value) for word in call.keywords}
        if words.get("name") in (repr(thread_name), f'"{thread_name}"') and "target" in words:
            return words["target"].rpartition(".")[2]
    return ""


def _filled(function: ast.FunctionDef) -> set[str]:
    """The objects into which a function puts something, in the words of its text."""
    nodes = list(ast.walk(function))
    outer = {name for node in nodes if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}
    calls = (node.func for node in nodes if isinstance(node, ast.Call))
    filled = {ast.unparse(each.value) for each in calls if isinstance(each, ast.Attribute) and each.attr in _BRINGS}
    for node in nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            filled.add(ast.unparse(node.value))
        if isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store):
            filled.add(ast.unparse(node))
    return {name for name in filled if "." in name or name in outer or name not in _locals(function)}


def _locals(function: ast.FunctionDef) -> set[str]:
    """The names that a function itself assigns."""
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def looks_inside(frame: Frame) -> bool:
    """Whether the innermost loop around a frame looks only at objects of its own process, such as a list or an event,
    and sleeps."""
    loop = innermost_loop(frame)
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call)] if loop is not None else []
    return (
        isinstance(loop, ast.While) and {ast.unparse(call.func).rsplit(".", 1)[-1] for call in calls} <= _LOOKS_INSIDE
    )


def passes_on(frame: Frame) -> bool:
    """Whether the line of a frame is a statement of its own, a sleep or a wait whose result nobody uses, in a loop that
    also calls something that does not look only at objects of its own process."""
    loop = innermost_loop(frame)
    nodes = list(ast.walk(loop)) if loop is not None else []
    statements = [node.value for node in nodes if isinstance(node, ast.Expr) and holds(node, frame.line)]
    others = {ast.unparse(node.func).rsplit(".", 1)[-1] for node in nodes
              if isinstance(node, ast.Call) and node not in statements}  # fmt: skip
    return bool(statements) and not others <= _LOOKS_INSIDE


_SAYS = frozenset({"print", "debug", "info", "warning", "log", "sleep"})  # calls that bring nothing


def begins_anew(frame: Frame) -> bool:
    """Whether the line of a frame waits for a limited time in a loop that does nothing but begin the wait anew until
    something has come: by its condition, or as its first statement, whose errors are only told."""
    loop = innermost_loop(frame)
    if not isinstance(loop, ast.While):
        return False
    if holds(loop.test, frame.line):
        return all(map(_does_nothing, loop.body))
    first = loop.body[0]
    if not isinstance(loop.test, (ast.Constant, ast.Name)) or not isinstance(first, ast.Try) or first.finalbody:
        return False
    handled = [part for handler in first.handlers for part in handler.body]
    goes_on = all(isinstance(handler.body[-1], ast.Continue) for handler in first.handlers)
    return holds(first.body[0], frame.line) and all(map(_does_nothing, handled)) and (goes_on or len(loop.body) == 1)


def _does_nothing(part: ast.stmt) -> bool:
    says = isinstance(part, ast.Expr) and isinstance(part.value, ast.Call)
    return isinstance(part, (ast.Pass, ast.Continue)) or (says and _name(part.value.func) in _SAYS)  # type: ignore[attr-defined]


def _name(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]


def innermost_loop(frame: Frame) -> ast.For | ast.While | ast.AsyncFor | None:
    """The innermost loop around a frame within its function, whose head counts as part of it; None without one."""
    body = function_of(frame)
    loops = [
        node
        for node in (ast.walk(body) if body is not None else ())
        if isinstance(node, (ast.For, ast.While, ast.AsyncFor)) and holds(node, frame.line)
    ]
    return max(loops, key=lambda loop: loop.lineno) if loops else None


# Calls of a loop that waits for the end of a child, says so, and reads nothing of what the child writes.
_OF_WAITING = frozenset({
    "wait", "join", "poll", "is_alive", "print", "debug", "info", "warning", "error", "exception", "critical", "log",
    "monotonic", "time", "perf_counter", "sleep", "format", "round", "flush", "str", "len", "waitpid",
})  # fmt: skip
_CLOCKS = frozenset({"monotonic", "time", "perf_counter"})
_LEFT_BY = frozenset({"poll", "is_alive", "returncode", "exitcode", "waitpid"})  # what tells that the child has ended


def waits_again(frame: Frame, *, raises: bool) -> bool:
    """Whether a wait for the end of a child at this line, which has a time limit, begins anew each time: it stands in a
    `while` loop that only waits and that only the child's end leaves.

    `raises`: the wait raises an error at its limit, so that the loop has to catch it.
    """
    loop = innermost_loop(frame)
    if not isinstance(loop, ast.While) or any(isinstance(node, ast.Raise) for node in ast.walk(loop)):
        return False
    functions = [node.func for node in ast.walk(loop) if isinstance(node, ast.Call)]
    if any(_short_name(function) not in _OF_WAITING for function in functions):
        return False
    named = _named(loop.test)
    if not isinstance(loop.test, ast.Constant) and (not named & _LEFT_BY or named & _CLOCKS):
        return False
    tries = [node for node in ast.walk(loop) if isinstance(node, ast.Try) and any_holds(node.body, frame.line)]
    if raises and not any(each.handlers for each in tries):
        return False
    # What stands behind a wait that raises, in its own block or in the `else` of its `try`, runs when the child has
    # ended, and so does the body of a condition that says so.
    behind = [part for each in tries if raises for part in (*each.body, *each.orelse)]
    behind = [part for part in behind if part.lineno > frame.line or isinstance(part, ast.Return)]
    behind += [part for node in ast.walk(loop) if isinstance(node, ast.If) and _says_ended(node.test)
               for part in node.body]  # fmt: skip
    return all(node in behind for node in ast.walk(loop) if isinstance(node, (ast.Break, ast.Return)))


def _says_ended(test: ast.expr) -> bool:
    """Whether a condition holds only of a child that has ended."""
    text = ast.unparse(test)
    return bool(_named(test) & _LEFT_BY) and (
        text.endswith(("poll() is not None", "code is not None")) or text.startswith("not ")
    )


def _short_name(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]


def _named(body: ast.AST) -> set[str]:
    return {node.attr for node in ast.walk(body) if isinstance(node, ast.Attribute)}


def condition(frame: Frame) -> str:
    """The text of the condition while which the innermost loop around a frame goes on; empty if it has none."""
    loop = innermost_loop(frame)
    return "" if not isinstance(loop, ast.While) or isinstance(loop.test, ast.Constant) else ast.unparse(loop.test)


_READS = frozenset({"read", "read1", "readinto", "readline", "readlines", "recv"})
_OF_SIGNALS = frozenset({"set_wakeup_fd", "sigaction", "signal"})  # their handlers may write to a pipe of the process


def reads(frame: Frame) -> bool:
    """Whether the line of a frame reads a stream or descriptor, in a file that handles no signals itself."""
    body, tree = function_of(frame), tree_of(frame.file)
    if body is None or tree is None or _OF_SIGNALS & _called(tree):
        return False
    heads = (node.iter for node in ast.walk(body) if isinstance(node, ast.For))
    calls = (node for node in ast.walk(body) if isinstance(node, ast.Call) and _READS & _called(node))
    return any(holds(node, frame.line) for node in (*heads, *calls))


_ASKING = frozenset({"input", "getpass", "getpass.getpass", "click.prompt", "click.confirm", "typer.prompt",
                     "typer.confirm", "Prompt.ask", "Confirm.ask"})  # fmt: skip


def asks_a_person(frame: Frame) -> str:
    """The call on the line of a frame that waits for an answer at the standard input, such as "input"; empty without
    one."""
    body = function_of(frame)
    calls = [node for node in ast.walk(body) if isinstance(node, ast.Call)] if body is not None else []
    names = (ast.unparse(call.func) for call in calls if holds(call, frame.line))
    return next((name for name in names if name in _ASKING), "")


def sleeps_within(frame: Frame) -> bool:
    """Whether the innermost loop around a frame sleeps somewhere."""
    loop = innermost_loop(frame)
    return loop is not None and "sleep" in _called(loop)


def slept_s(frame: Frame) -> float | None:
    """The seconds that the line of a frame sleeps, if its text has them as a number; None otherwise."""
    body = function_of(frame)
    for node in ast.walk(body) if body is not None else ():
        if isinstance(node, ast.Call) and holds(node, frame.line) and ast.unparse(node.func).endswith("sleep"):
            return _number(node.args[0]) if node.args else None
    return None


def _number(node: ast.expr) -> float | None:
    """The value of a number, or of a product, power or sum of numbers; None for anything else."""
    if isinstance(node, ast.Constant):
        return float(node.value) if isinstance(node.value, (int, float)) else None
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _number(node.left), _number(node.right)
    if left is None or right is None:
        return None
    if isinstance(node.op, ast.Mult):
        return left * right
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Pow) and 0 <= left <= MAX_BASE and 0 <= right <= MAX_EXPONENT:
        return float(left**right)
    return None


_FORKS = frozenset({"os.fork", "fork", "os.forkpty", "forkpty", "pty.fork"})


def fork_lines(frame: Frame) -> list[int]:
    """The lines of a frame's own function, before the frame's line or at it, that fork the process."""
    pending, lines = [function_of(frame)], []
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _FORKS and node.lineno <= frame.line:
            lines.append(node.lineno)
        inner = ast.iter_child_nodes(node) if node is not None else ()
        pending += [each for each in inner if not isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))]
    return lines


def waits_for_device(frame: Frame) -> bool:
    """Whether the line of a frame calls something that waits for a device: `.item()`, `.cpu()`, `.tolist()`,
    `synchronize()`, `float(x)`."""
    body = function_of(frame)
    lines = [node for node in ast.walk(body) if holds(node, frame.line)] if body is not None else []
    here = [node for node in lines if isinstance(node, ast.Call) and node.end_lineno == node.lineno == frame.line]
    return any(map(_of_device, here))


def pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """A target of an assignment with its value; of a tuple of names each with its own."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def notified_by(frame: Frame) -> str:
    """The text of the condition whose notification the line of a frame waits for; empty without one."""
    body = function_of(frame)
    calls = (node for node in ast.walk(body) if isinstance(node, ast.Call)) if body is not None else ()
    return next(
        (ast.unparse(call.func.value) for call in calls if isinstance(call.func, ast.Attribute)
         and call.func.attr in ("wait", "wait_for") and holds(call, frame.line)),
        "",
    )  # fmt: skip


@lru_cache(maxsize=4096)
def notifies(frame: Frame, condition: str) -> bool:
    """Whether the function of a frame, behind its line, notifies the condition of that text, itself or by a call of a
    function of the same file."""
    body, tree = function_of(frame), tree_of(frame.file)
    if body is None or tree is None:
        return False
    functions = {
        node.name for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _notification(node, condition, 0)
    }  # fmt: skip
    calls_behind = (node for node in ast.walk(body) if isinstance(node, ast.Call) and node.lineno > frame.line)
    return _notification(body, condition, frame.line) or any(
        (call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")) in functions
        for call in calls_behind
    )


def _notification(body: ast.AST, condition: str, behind: int) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("notify", "notify_all")
        and ast.unparse(node.func.value) == condition
        and node.lineno > behind
        for node in ast.walk(body)
    )


def _of_device(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in _OF_VALUE and any(not isinstance(argument, ast.Constant) for argument in call.args)
    if not isinstance(call.func, ast.Attribute):
        return False
    to_host = call.func.attr == "to" and any(
        isinstance(argument, ast.Constant) and argument.value == "cpu" for argument in call.args
    )
    return to_host or call.func.attr in _OF_DEVICE


def _called(body: ast.AST) -> set[str]:
    functions = [node.func for node in ast.walk(body) if isinstance(node, ast.Call)]
    return {function.attr for function in functions if isinstance(function, ast.Attribute)}


@lru_cache(maxsize=4096)
def behind_loop(frame: Frame, loop_frame: Frame) -> int:
    """The line of a loop that contains `loop_frame` and that `frame`, in the same function, has left; 0 without one."""
    body = function_of(frame)
    if body is None or (frame.file, frame.function) != (loop_frame.file, loop_frame.function):
        return 0
    for node in ast.walk(body):
        if not isinstance(node, (ast.For, ast.While, ast.AsyncFor)) or (node.end_lineno or 0) >= frame.line:
            continue
        if any(holds(part, loop_frame.line) for part in node.body):
            return node.lineno
    return 0


def comes_back(frames: Sequence[Frame], line: int) -> bool:
    """Whether a loop around the first of these frames brings it back to this line of its function, or a loop around one
    of its callers calls the function again. `frames` are innermost first."""
    body = function_of(frames[0])
    around = (
        node
        for node in (ast.walk(body) if body is not None else ())
        if isinstance(node, (ast.For, ast.While, ast.AsyncFor))
    )
    again = any(all(any(holds(part, at) for part in node.body) for at in (line, frames[0].line)) for node in around)
    return again or any(_in_loop(caller) for caller in frames[1:])


def any_holds(parts: Iterable[ast.AST], line: int) -> bool:
    """Whether one of these parts of a statement has the line."""
    return any(holds(part, line) for part in parts)


# Positional arguments of torch.distributed's collectives before `group` (torch 2.13).
BEFORE_GROUP = {
    "barrier": 0,
    **dict.fromkeys(("all_reduce", "broadcast", "all_gather", "all_gather_object", "all_gather_into_tensor",
                     "all_to_all", "broadcast_object_list"), 2),
    **dict.fromkeys(("reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "gather",
                     "gather_object"), 3),
}  # fmt: skip
_OF_TRAINING = frozenset(BEFORE_GROUP) - {"reduce"} | {"backward"}  # a reduce may be one of functools


def group_of(frame: Frame, function: str) -> str:
    """The text of the group with which the line of a frame calls this collective of torch.distributed; empty where it
    names none, or that cannot be told."""
    body = function_of(frame)
    groups = [
        group
        for node in (ast.walk(body) if body is not None else ())
        if isinstance(node, ast.Call) and holds(node, frame.line) and ast.unparse(node.func).endswith(function)
        and (group := _group(node))
    ]  # fmt: skip
    return groups[0] if len(groups) == 1 else ""


def groups_behind(frame: Frame) -> set[str]:
    """The texts of the groups of collectives that the function of a frame calls behind its line, in its own branch of
    each `if` around it."""
    body = function_of(frame)
    nodes = list(ast.walk(body)) if body is not None else []
    calls = [node for node in nodes if isinstance(node, ast.Call) and node.lineno > frame.line]
    branches = [
        other
        for node in nodes
        if isinstance(node, ast.If)
        for mine, other in ((node.body, node.orelse), (node.orelse, node.body))
        if any_holds(mine, frame.line)
    ]
    return {_group(call) for call in calls if not any(any_holds(its, call.lineno) for its in branches)} - {""}


def _group(call: ast.Call) -> str:
    """The text of the group of a collective's call; empty without one."""
    name = ast.unparse(call.func).rpartition(".")[2]
    at = BEFORE_GROUP.get(name)
    named = next((keyword.value for keyword in call.keywords if keyword.arg == "group"), None)
    if at is None or (named is None and len(call.args) <= at):
        return ""
    return ast.unparse(named if named is not None else call.args[at])


_STORES = frozenset({"TCPStore", "FileStore", "PrefixStore"})  # of torch.distributed


def store_key(frame: Frame) -> str:
    """The key that the line of a frame gets from a store or waits for, where it stands there as one text."""
    body = function_of(frame)
    keys = [key for line, key in _keys(body, "get", "wait") if line == frame.line]
    return keys[0] if len(keys) == 1 else ""


def waits_in_store(frame: Frame) -> bool:
    """Whether the line of a frame asks what the file makes as a store of torch for a key, which waits until somebody
    has set it."""
    body, tree = function_of(frame), tree_of(frame.file)
    if body is None or tree is None:
        return False
    stores = {
        ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).rpartition(".")[2] in _STORES
        for target in node.targets
    }  # fmt: skip
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "wait")
        and holds(node, frame.line) and ast.unparse(node.func.value) in stores
        for node in ast.walk(body)
    )  # fmt: skip


def keys_set(file: str) -> dict[str, int]:
    """The keys that a file sets in a store, where they stand there as text, each with its line."""
    return {key: line for line, key in _keys(tree_of(file), "set", "add", "append")}


def _keys(body: ast.AST | None, *methods: str) -> list[tuple[int, str]]:
    """The first arguments of calls of these methods that are text, or lists of it, each with its line."""
    calls = [node for node in (ast.walk(body) if body is not None else ()) if isinstance(node, ast.Call) and node.args]
    return [
        (call.lineno, text)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in methods
        for text in _texts(call.args[0])
    ]


def _texts(argument: ast.expr) -> list[str]:
    parts = argument.elts if isinstance(argument, (ast.List, ast.Tuple)) else [argument]
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def holds(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", 0) or 0)


@lru_cache(maxsize=4096)
def function_of(frame: Frame) -> ast.AST | None:
    """The function of a frame, if the file has one of that name at that line; else None."""
    tree = tree_of(frame.file)
    if tree is None:
        return None
    name = frame.function.rsplit(".", 1)[-1]
    if name == "<module>":
        return tree
    definitions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name and holds(node, frame.line)
    ]
    return definitions[-1] if definitions else None


@lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module | None:
    path = Path(file)
    try:
        if not path.is_absolute() or path.suffix != ".py" or not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):  # absent, or not valid for this Python version
        return None
