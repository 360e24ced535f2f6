"""An OpenAI-compatible HTTP interface to an engine that runs in another thread."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from steersman_engine.decode.request import Request
from steersman_engine.server.loop import EngineLoop
from steersman_engine.server.openai import COMPLETION_TOKENS, ChatBody, CompletionBody, Reply, parse
from steersman_engine.server.text import TextStream, Tokenizer
from steersman_engine.telemetry import is_segment

SEGMENT_HEADER = "x-steersman-segment"

MAX_BODY_BYTES = 1 << 21
"""Prompts are turned into tokens between the streams of others; no context is as long as this."""


class Inbox:
    """Hands the tokens of a request from the engine's thread to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: asyncio.Queue[list[int]] = asyncio.Queue()

    def put(self, request: Request, tokens: list[int]) -> None:
        """Called in the engine's thread; costs a lock that is never held for long."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, tokens)

    async def steps(self) -> AsyncIterator[list[int]]:
        """The tokens of each step, until the request is over."""
        while tokens := await self._queue.get():
            yield tokens


class Server:
    """The routes. All run in the event loop; only the engine's thread touches the model."""

    def __init__(
        self,
        loop: EngineLoop,
        tokenizer: Tokenizer,
        model: str,
        stop_ids: frozenset[int],
        lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None,
    ) -> None:
        self.loop = loop
        self.tokenizer = tokenizer
        self.model = model
        self.stop_ids = stop_ids
        self.app = Starlette(
            routes=[
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/health", self.health),
            ],
            lifespan=lifespan,
        )

    async def models(self, http: HttpRequest) -> Response:
        """The one model that is served."""
        listed = {"id": self.model, "object": "model", "owned_by": "steersman"}
        return JSONResponse({"object": "list", "data": [listed]})

    async def health(self, http: HttpRequest) -> Response:
        """How busy the engine is, and the K in force."""
        engine = self.loop.engine
        decision = engine.decision
        return JSONResponse(
            {
                "status": "ok",
                "live": len(engine.live),
                "waiting": len(engine.waiting),
                "steps": engine.steps,
                "kv_used_fraction": engine.slots.used_fraction,
                "proposal_length": decision.proposal_length if decision else {},
                "plan_id": decision.plan_id if decision else 0,
                "reason": decision.reason if decision else "",
            }
        )

    async def completions(self, http: HttpRequest) -> Response:
        """POST /v1/completions."""
        return await self._serve(http, CompletionBody)

    async def chat(self, http: HttpRequest) -> Response:
        """POST /v1/chat/completions."""
        return await self._serve(http, ChatBody)

    async def _serve(self, http: HttpRequest, kind: type[CompletionBody] | type[ChatBody]) -> Response:
        try:
            size = http.headers.get("content-length", "0")
            if size.isdigit() and int(size) > MAX_BODY_BYTES:
                return _error(413, "invalid_request_error", f"body: {size} bytes, at most {MAX_BODY_BYTES}")
            body = parse(await http.body(), kind)
            inbox = Inbox(asyncio.get_running_loop())
            request = self._submit(body, http.headers.get(SEGMENT_HEADER, ""), inbox)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody is there to read it
        except ValueError as error:
            return _error(400, "invalid_request_error", str(error))
        reply = Reply(request, self.model, int(time.time()), chat=kind is ChatBody)
        if body.stream:
            return StreamingResponse(self._events(request, inbox, reply), media_type="text/event-stream")
        return await self._whole(http, request, inbox, reply)

    def _submit(self, body: CompletionBody | ChatBody, header: str, inbox: Inbox) -> Request:
        if header and not is_segment(header):
            raise ValueError(
                f"{SEGMENT_HEADER}: {header[:80]!r}; allowed are 1 to 64 of A-Z a-z 0-9 _ . : / -"
            )
        prompt = self._prompt(body)
        room = self.loop.engine.max_len - len(prompt)
        if room < 1:
            raise ValueError(f"prompt: {len(prompt)} tokens leave no room in max_len {len(prompt) + room}")
        chat = isinstance(body, ChatBody)
        sampling = body.sampling(room if chat else min(COMPLETION_TOKENS, room), self.stop_ids)
        attributes = {
            "route": "chat" if chat else "completions",
            "sampling": "greedy" if sampling.greedy else "sampled",
        }
        return self.loop.submit(
            prompt, sampling, on_tokens=inbox.put, segment=body.segment or header, attributes=attributes
        )

    def _prompt(self, body: CompletionBody | ChatBody) -> list[int]:
        if isinstance(body, CompletionBody):
            return self.tokenizer.encode(body.prompt) if isinstance(body.prompt, str) else body.prompt
        if not self.tokenizer.chat_template:
            raise ValueError(f"messages: the model {self.model} has no chat template; use /v1/completions")
        turns = [{"role": message.role, "content": message.text} for message in body.messages]
        try:
            text = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates raise whatever they like about roles and their order
            raise ValueError(f"messages: the chat template refuses them: {error}") from None
        return self.tokenizer.encode(text, add_special_tokens=False)

    async def _whole(self, http: HttpRequest, request: Request, inbox: Inbox, reply: Reply) -> Response:
        gone = asyncio.create_task(self._cancel_when_gone(http, request))
        try:
            async for _ in inbox.steps():
                pass
        finally:
            gone.cancel()
            self.loop.cancel(request)
        if request.finish_reason == "error":
            return _error(500, "server_error", request.error)
        return JSONResponse(reply.whole(self.tokenizer.decode(request.output, skip_special_tokens=True)))

    async def _events(self, request: Request, inbox: Inbox, reply: Reply) -> AsyncIterator[str]:
        text = TextStream(self.tokenizer)
        try:
            async for tokens in inbox.steps():
                yield _event(reply.chunk(text.add(tokens), tokens))
            if request.finish_reason == "error":
                yield _event({"error": {"type": "server_error", "message": request.error}})
            else:
                yield _event(reply.last_chunk(text.add([], last=True)))
            yield "data: [DONE]\n\n"
        finally:
            # A client that leaves closes this generator: then nobody needs the rest.
            self.loop.cancel(request)

    async def _cancel_when_gone(self, http: HttpRequest, request: Request) -> None:
        while not await http.is_disconnected():
            await asyncio.sleep(0.05)
        self.loop.cancel(request)


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, separators=(',', ':'))}\n\n"


def _error(status: int, kind: str, message: str) -> Response:
    return JSONResponse({"error": {"type": kind, "message": message}}, status_code=status)
