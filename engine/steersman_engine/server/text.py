"""Text out of tokens, piece by piece."""

from typing import Any, Protocol


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used."""

    chat_template: Any
    eos_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids."""
        ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        """The conversation as the text that the model was trained on."""
        ...


class TextStream:
    """Turns growing output into text that never changes once it was given out.

    A token may hold part of a character, or change how its neighbour reads; so text is decoded from a
    few tokens back, and what ends in the middle of a character waits for the rest.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._given = 0
        """Tokens whose text was given out."""
        self._context = 0
        """Where decoding starts."""

    def add(self, tokens: list[int], *, last: bool = False) -> str:
        """The text that became certain; everything that is left where it is the last call."""
        self._tokens += tokens
        before = self._decode(self._tokens[self._context : self._given])
        now = self._decode(self._tokens[self._context :])
        if len(now) <= len(before) or (now.endswith("\ufffd") and not last):
            return ""
        self._context, self._given = self._given, len(self._tokens)
        return now[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)
