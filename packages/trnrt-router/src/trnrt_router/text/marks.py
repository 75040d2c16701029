"""Where a prompt's next turns will still agree with it: positions worth a cache bundle.

The message list is cut (after the system messages, before the newest input, after the last user
message, after the last tool result), rendered again, and a mark is the longest common *token*
prefix of cut and prompt. A cut is also held against the next turn, with stand-ins for messages
nobody has written yet: a template that rewrites history moves the mark to what it leaves alone.
(A template that puts nothing at all between two messages can be promised nothing: their words
merge.)

The prompt is tokenized once. Of a cut only the characters around the end of the common text are:
the prompt's own tokens up to a border shortly before it are those of the cut too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from trnrt_router.text.chat_template import RenderedPrompt
from trnrt_router.text.controls import PromptText
from trnrt_router.text.conversation import Conversation
from trnrt_router.text.messages import Message
from trnrt_router.text.tokenizer import EncodedPrompt, Tokenizer

# Characters before and behind the end of the common text that are tokenized again: more than any
# word whose tokens depend on what follows it.
WINDOW_CHARS = 512

_CALL_ID = "000000000"
_ANSWER: Message = {"role": "assistant", "content": ""}
_CALL: Message = _ANSWER | {
    "tool_calls": [{"type": "function", "id": _CALL_ID, "function": {"name": "f", "arguments": {}}}]
}
_RESULT: Message = {"role": "tool", "content": "", "tool_call_id": _CALL_ID}
_QUESTION: Message = {"role": "user", "content": ""}


def find_marks(prompt: RenderedPrompt, encoded: EncodedPrompt, tokenizer: Tokenizer) -> list[int]:
    """Return the marks of a conversation, ascending, as numbers of tokens before them.

    Marks up to the last user message hold when the user goes on. Those behind it (tool results)
    hold while the model calls tools; a template that drops old reasoning breaks them when the
    user speaks again.
    """
    conversation = prompt.conversation
    messages = conversation.messages
    last_user = _last(messages, "user")
    limits = {
        asker: _common_tokens(prompt, next_turn, encoded, tokenizer)
        for asker, next_turn in _next_turns(conversation, last_user)
    }
    marks = set()
    for cut in _cuts(messages, last_user):
        asker = "user" if len(cut) <= last_user + 1 else "tool"
        text = conversation.render_open(cut)
        if text is not None:
            mark = _common_tokens(prompt, text, encoded, tokenizer)
            marks.add(min(mark, limits.get(asker, mark)))
    return sorted(marks - {0})


def _cuts(messages: Sequence[Message], last_user: int) -> Iterator[list[Message]]:
    """Yield the parts of a conversation that come again in other requests."""
    roles = [message["role"] for message in messages]
    num_system = next((i for i, role in enumerate(roles) if role != "system"), len(roles))
    yield [*messages[:num_system]]
    if last_user >= 0:
        yield [*messages[: last_user + 1]]
    last_input = max((i for i, role in enumerate(roles) if role != "assistant"), default=-1)
    if last_input > last_user and last_input >= num_system:
        yield [*messages[: last_input + 1]]
    first_input = last_input
    while first_input > 0 and roles[first_input - 1] != "assistant":
        first_input -= 1
    if first_input > num_system:
        # Emptied instead of left out: templates render an answer by what follows it.
        yield [*messages[:first_input], messages[first_input] | {"content": ""}]


def _next_turns(conversation: Conversation, last_user: int) -> Iterator[tuple[str, PromptText]]:
    """Yield who speaks next and the prompt of that turn, as far as the template allows it."""
    messages = conversation.messages
    is_answered = messages[-1]["role"] == "assistant"
    turns = {"user": [*messages, *([] if is_answered else [_ANSWER]), _QUESTION]}
    if any(message["role"] != "assistant" for message in messages[last_user + 1 :]):
        turns["tool"] = [*messages, *([] if is_answered else [_CALL]), _RESULT]
    for asker, turn in turns.items():
        text = conversation.render_open(turn)
        if text is not None:
            yield asker, text


def _last(messages: Sequence[Message], role: str) -> int:
    return max((i for i, message in enumerate(messages) if message["role"] == role), default=-1)


def _common_tokens(
    prompt: PromptText, other: PromptText, encoded: EncodedPrompt, tokenizer: Tokenizer
) -> int:
    """Return how many tokens of the prompt the encoding of another prompt begins with."""
    common = _common_chars(prompt, other)
    char, token = _border_before(prompt, common, encoded, tokenizer)
    tail = tokenizer.encode_prompt(_part(other, char, common + WINDOW_CHARS))
    for ours, theirs in zip(encoded.ids[token : token + len(tail)], tail, strict=False):
        if ours != theirs:
            break
        token += 1
    return token


def _common_chars(one: PromptText, other: PromptText) -> int:
    """Return the length of the common prefix, seams included."""
    common = _common_length(one.text, other.text)
    num_seams = _common_length(one.seams, other.seams)
    for seams in (one.seams, other.seams):
        # Here only one of them is plain text; its spelling begins a character before the seam.
        if num_seams < len(seams):
            common = min(common, seams[num_seams] - 1)
    return common


def _common_length(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the length of the common prefix, by halves: comparing slices is quick."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _border_before(
    prompt: PromptText, common: int, encoded: EncodedPrompt, tokenizer: Tokenizer
) -> tuple[int, int]:
    """Return (character, token) of a border of the prompt's tokens a window before `common`.

    Inside a text it is the start of a word if there is one: what follows is then encoded alike
    with and without what is before.
    """
    wanted = max(common - WINDOW_CHARS, 0)
    piece = bisect_right(encoded.piece_chars, wanted) - 1
    first_char, first_token = encoded.piece_chars[piece], encoded.piece_tokens[piece]
    if first_char == wanted:
        return first_char, first_token
    # Counted from the piece's end, because marks lie near the ends of messages.
    rest = prompt.text[wanted : encoded.piece_chars[piece + 1]].encode()
    token, size = encoded.piece_tokens[piece + 1], len(rest)
    borders: list[tuple[int, int]] = []
    while token > first_token:
        part = tokenizer.token_bytes(encoded.ids[token - 1])
        if len(part) > size:
            break
        if not rest.endswith(part, 0, size):
            return first_char, first_token  # a normaliser changed the text: bytes do not count
        size -= len(part)
        token -= 1
        borders.append((size, token))
    end = len(prompt.text[wanted:common].encode())
    inside = [
        (size, token)
        for size, token in reversed(borders)
        if size < end and rest[size] & 0xC0 != 0x80  # not within a character
    ]
    words = (place for place in inside if _is_word_start(rest, place[0]))
    size, token = next(words, inside[0] if inside else (-1, first_token))
    return (wanted + len(rest[:size].decode()), token) if size >= 0 else (first_char, first_token)


def _is_word_start(text: bytes, index: int) -> bool:
    return index > 0 and text[index : index + 1].isspace() and not text[index - 1 : index].isspace()


def _part(prompt: PromptText, start: int, end: int) -> PromptText:
    return PromptText(
        prompt.text[start:end], tuple(seam - start for seam in prompt.seams if start < seam < end)
    )
