"""Bodies of the OpenAI-compatible interface: strict to read, plain to write."""

import secrets
from typing import Any

import msgspec
from msgspec import Struct

from steersman_engine.decode.request import Request, Sampling
from steersman_policies.policy import did_you_mean
from steersman_policies.units import Segment

COMPLETION_TOKENS = 16
"""OpenAI's default for completions; a chat may use all the room there is."""

NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1, None),
    "best_of": (1, None),
    "echo": (False, None),
    "logprobs": (False, None),
    "top_logprobs": (0, None),
    "stop": (None, []),
    "suffix": (None, ""),
    "presence_penalty": (0, None),
    "frequency_penalty": (0, None),
    "logit_bias": (None, {}),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "repetition_penalty": (None, 1),
    "response_format": (None, {"type": "text"}),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "modalities": (None, ["text"]),
}
"""Parameters that clients send although they want the default; any other value is refused."""

IGNORED = ("user", "stream_options", "metadata", "store", "service_tier", "parallel_tool_calls")

NULL_MEANS_DEFAULT = ("temperature", "top_p", "stream", "ignore_eos", "model")


class TextPart(Struct, frozen=True, forbid_unknown_fields=True, tag="text"):
    """A piece of a turn's text."""

    text: str


class Message(Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a chat."""

    role: str
    content: str | list[TextPart]
    name: str | None = None
    refusal: None = None

    @property
    def text(self) -> str:
        """The turn as one text."""
        return self.content if isinstance(self.content, str) else "".join(p.text for p in self.content)


class Body(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What completions and chats have in common."""

    model: str = ""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stream: bool = False
    ignore_eos: bool = False
    segment: Segment | None = None

    def sampling(self, room_tokens: int, stop_ids: frozenset[int]) -> Sampling:
        """How to choose tokens; `room_tokens` is used where no limit is given.

        A request without a seed gets one by chance, as OpenAI does.
        """
        asked = self.max_tokens if self.max_tokens is not None else self.max_completion_tokens
        return Sampling(
            max_tokens=room_tokens if asked is None else asked,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=secrets.randbits(62) if self.seed is None else self.seed,
            ignore_eos=self.ignore_eos,
            stop_ids=stop_ids,
        )


class CompletionBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions."""

    prompt: str | list[int]


class ChatBody(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions."""

    messages: list[Message]


def parse(raw: bytes, kind: type[CompletionBody] | type[ChatBody]) -> CompletionBody | ChatBody:
    """The body of a request. Raises ValueError with one line: what, where, allowed."""
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"body: not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError("body: must be a JSON object")
    known = [field.name for field in msgspec.structs.fields(kind)]
    wanted: dict[str, Any] = {}
    for name, value in fields.items():
        if name in NEUTRAL:
            if value not in NEUTRAL[name]:
                raise ValueError(f"{name}: {value!r} is not supported; leave it out")
        elif name in known:
            if value is None and name in NULL_MEANS_DEFAULT:
                continue
            wanted[name] = value
        elif name not in IGNORED:
            raise ValueError(
                f"{name}: unknown parameter{did_you_mean(name, known)}; known: {', '.join(known)}"
            )
    try:
        return msgspec.convert(wanted, kind)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$.")
        raise ValueError(f"{place.rstrip('`')}: {text}" if place else f"body: {text}") from None


def usage(request: Request) -> dict[str, int]:
    """Token counts, with those of drafting."""
    output_tokens = len(request.tokens) - len(request.prompt)
    return {
        "prompt_tokens": len(request.prompt),
        "completion_tokens": output_tokens,
        "total_tokens": len(request.tokens),
        "drafted": request.drafted,
        "accepted": request.accepted,
        "steps": request.steps,
    }


class Reply:
    """The names and shapes that answers to one request share."""

    def __init__(self, request: Request, model: str, created_s: int, *, chat: bool) -> None:
        self.request = request
        self.chat = chat
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{request.number}",
            "created": created_s,
            "model": model,
        }

    def whole(self, text: str) -> dict[str, Any]:
        """The answer in one piece."""
        if self.chat:
            content: dict[str, Any] = {"message": {"role": "assistant", "content": text}}
        else:
            content = {"text": text}
        choice = {**content, "token_ids": self.request.output, **self._end()}
        name = "chat.completion" if self.chat else "text_completion"
        return {**self._head, "object": name, "choices": [choice], "usage": usage(self.request)}

    def chunk(self, text: str, tokens: list[int]) -> dict[str, Any]:
        """What one step committed."""
        delta = {"role": "assistant", "content": text}
        return self._chunk(delta, text, tokens, {"index": 0, "finish_reason": None})

    def last_chunk(self, text: str) -> dict[str, Any]:
        """Why it ended, and the counts."""
        chunk = self._chunk({"content": text} if text else {}, text, [], self._end())
        return {**chunk, "usage": usage(self.request)}

    def _chunk(
        self, delta: dict[str, str], text: str, tokens: list[int], end: dict[str, Any]
    ) -> dict[str, Any]:
        content: dict[str, Any] = {"delta": delta} if self.chat else {"text": text}
        name = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self._head, "object": name, "choices": [{**content, "token_ids": tokens, **end}]}

    def _end(self) -> dict[str, Any]:
        return {"index": 0, "finish_reason": self.request.finish_reason}
