"""Several SGLang engines behind `sglang-router`: SGLang's HTTP server around a live engine, and the router's process.

sglang-router 0.3.2 forwards the fields of a request that it knows and silently drops the others (seen), among them
`sampling_params.custom_params` and `return_prompt_token_ids`. So a draw is sent in `custom_labels`, which SGLang
keeps for metrics, and each engine restores both fields. Runs in SGLang's environment only.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from probes.draws import DRAW
from scenarios.engines.engine_interface import EngineError, Request
from scenarios.ports import free_port

LABEL = "rlhf_harness_request"  # label of a request: which sample it draws, and from which token on
START_S = 120.0  # within which a router must have found its engines: 3 to 12 s, measured on a busy machine
DYING_S = 5.0  # a choice: after a router's death, its actor ends sooner than this, with the reason
ANSWER_S = 5.0  # a choice: it answers in milliseconds
LOOK_S = 0.1  # a choice: seconds between questions whether the router has found its engines
# The program dies with the thread that started it. 1: PR_SET_PDEATHSIG of linux/prctl.h, 9: SIGKILL.
PROGRAM = "import ctypes; ctypes.CDLL(None).prctl(1, 9); from sglang_router.launch_router import main; main()"

Answered = Callable[[int, int], None]  # called with the sample and the offset of every answered request


class Server:
    """SGLang's own HTTP server around a live `sglang.Engine`, reachable from this host only.

    The engine's event loop otherwise runs only during a call. Here it runs in a thread of its own until `close`.
    """

    def __init__(self, engine: Any, answered: Answered) -> None:
        import uvicorn
        from sglang.srt.entrypoints import http_server
        from sglang.srt.managers.tokenizer_manager import ServerStatus

        manager = engine.tokenizer_manager
        manager.server_status = ServerStatus.Up
        state = http_server._GlobalState(_Restoring(manager, answered), engine.template_manager, {})
        http_server.set_global_state(state)
        self._engine, self._loop = engine, engine.loop
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="engine-loop")
        self._thread.start()
        engine.loop = _Running(self._loop)
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        # No lifespan: it would set up OpenAI endpoints and warm up, and the engine is warm already.
        self._server = uvicorn.Server(uvicorn.Config(http_server.app, lifespan="off", log_level="error"))
        self._serving = asyncio.run_coroutine_threadsafe(self._server.serve(sockets=[listening]), self._loop)

    def close(self) -> None:
        self._server.should_exit = True
        self._serving.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._engine.loop = self._loop


class _Running:
    """An event loop that runs in another thread, with the interface that `sglang.Engine` uses."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run_until_complete(self, work: Awaitable[Any]) -> Any:
        async def awaited() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result()


class _Restoring:
    """The tokenizer manager as SGLang's HTTP server calls it. It restores the fields of our requests that a router
    drops.
    """

    def __init__(self, manager: Any, answered: Answered) -> None:
        self._manager, self._answered = manager, answered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    async def generate_request(self, generate_input: Any, request: Any = None) -> AsyncIterator[Any]:
        labels, generate_input.custom_labels = generate_input.custom_labels or {}, None
        if LABEL in labels:
            generate_input.return_prompt_token_ids = True
        if DRAW in labels:
            generate_input.sampling_params["custom_params"] = {DRAW: json.loads(labels[DRAW])}
        async for answer in self._manager.generate_request(generate_input, request):
            if LABEL in labels:
                self._answered(*json.loads(labels[LABEL]))
            yield answer


def body(request: Request, params: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return one request for the router. Each request is one sample with one set of sampling parameters."""
    params = dict(params)
    labels = {LABEL: json.dumps([request.sample, request.offset])}
    if drawn := params.pop("custom_params", None):
        labels[DRAW] = json.dumps(drawn[DRAW])
    return {
        "sampling_params": params,
        "custom_labels": labels,
        **{name: value for name, value in fields.items() if value},
    }


async def answers(router: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Send all `bodies` to the router at once, and return the engines' answers in their order."""
    import aiohttp

    async def post(session: aiohttp.ClientSession, payload: dict[str, Any]) -> dict[str, Any]:
        try:
            async with session.post(f"{router}/generate", json=payload) as response:
                if response.status != 200:
                    why = (await response.text())[:300]
                    raise EngineError(f"sglang-router refused a request with status {response.status}", why)
                answer: dict[str, Any] = await response.json()
                return answer
        except aiohttp.ClientError as error:
            await asyncio.sleep(DYING_S)
            raise EngineError("sglang-router did not answer a request", str(error) or type(error).__name__) from error

    unlimited = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=unlimited, connector=aiohttp.TCPConnector(limit=0)) as session:
        return list(await asyncio.gather(*(post(session, payload) for payload in bodies)))


class Router:
    """A process of `sglang-router` in front of the engines at these addresses. Raises EngineError where it does not
    come up.

    Its retries and circuit breakers keep their defaults. Its health check is off: the check draws a token, even from
    a sleeping engine, and the harness watches the engines itself.
    """

    def __init__(self, engines: list[str], policy: str) -> None:
        if importlib.util.find_spec("sglang_router") is None:
            raise EngineError(
                f"engine.router = {policy}: sglang-router is not installed beside SGLang",
                "harness env create sglang --recreate, or pip install sglang-router in an environment of your own",
            )
        self.asked = engines, policy
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        words = ["--policy", policy, "--host", "127.0.0.1", "--port", str(port), "--disable-health-check"]
        words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()), "--log-level", "warn"]
        direct = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        self._process = subprocess.Popen([sys.executable, "-c", PROGRAM, "--worker-urls", *engines, *words], env=direct)
        self.pid = self._process.pid
        until = time.monotonic() + START_S
        while (healthy := self._healthy_engines()) < len(engines):
            code = self._process.poll()
            if code is not None or time.monotonic() > until:
                self.close()
                why = f"it ended with code {code}" if code is not None else f"it found {healthy} in {START_S:.0f} s"
                raise EngineError(f"sglang-router did not start before {len(engines)} engines", why)
            time.sleep(LOOK_S)

    def _healthy_engines(self) -> int:
        """Return how many engines the router sends requests to."""
        try:
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with direct.open(f"{self.url}/workers", timeout=ANSWER_S) as answer:
                return sum(worker["is_healthy"] for worker in json.load(answer)["workers"])
        except OSError:  # the router does not listen yet
            return 0

    def close(self) -> None:
        self._process.kill()  # it holds no state; asked politely, it would wait for connections
        self._process.wait()
