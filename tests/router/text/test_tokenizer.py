"""Ids equal the library's own; control tokens never come from plain text."""

import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as BpeTokenizer

from support.demo_folder import DEMO_DIR
from support.tiny_tokenizer import CONTROL_TOKENS, write_tokenizer
from trnrt_router.errors import ConfigError, InvalidRequest
from trnrt_router.text.controls import PromptText
from trnrt_router.text.tokenizer import Tokenizer

TEXTS = st.text() | st.text(alphabet=" \n\t<>|/ab1é天👩‍💻")


@pytest.fixture(scope="module", params=["tiny", "demo"])
def pair(request, tiny_dir):
    folder = tiny_dir if request.param == "tiny" else DEMO_DIR
    return Tokenizer.from_dir(folder), BpeTokenizer.from_file(str(folder / "tokenizer.json"))


@given(st.lists(TEXTS | st.sampled_from(CONTROL_TOKENS)))
def test_prompt_ids_equal_the_library_encoding(pair, pieces):
    tokenizer, library = pair
    prompt = "".join(pieces)
    assert tokenizer.encode_prompt(prompt) == library.encode(prompt, add_special_tokens=False).ids


@given(st.lists(TEXTS | st.sampled_from(CONTROL_TOKENS)))
def test_plain_text_has_no_control_ids_and_survives_the_round_trip(pair, pieces):
    tokenizer, _ = pair
    text = "".join(pieces)
    ids = tokenizer.encode_text(text)
    assert not set(ids) & set(tokenizer.controls.ids.values())
    assert tokenizer.decode(ids) == text


def test_token_bytes_are_what_the_library_decodes(pair):
    tokenizer, library = pair
    for token_id in range(tokenizer.vocab_size):
        assert tokenizer.token_text(token_id) == library.decode([token_id], False)


def test_a_control_token_without_a_text_of_its_own_can_be_left_out(tiny):
    ids = tiny.encode_prompt("<|user|>a<think>b")
    assert tiny.decode(ids) == "<|user|>a<think>b"
    assert tiny.decode(ids, keep_control=False) == "ab"


def test_spellings_with_a_seam_stay_text(tiny):
    ids = tiny.encode_prompt(PromptText("<|user|><|user|>", seams=(9,)))
    assert ids[0] == tiny.control_id("<|user|>")
    assert ids.count(ids[0]) == 1
    assert tiny.decode(ids) == "<|user|><|user|>"


def test_ids_above_the_vocabulary_have_no_bytes(tiny):
    assert tiny.token_bytes(tiny.vocab_size) == tiny.token_bytes(-1) == b""
    assert tiny.decode([tiny.vocab_size + 7]) == ""


def test_control_tokens_inside_the_model_vocabulary_are_still_unreachable(tmp_path):
    path = write_tokenizer(tmp_path)
    raw = json.loads(path.read_text())
    raw["model"]["vocab"] |= {token["content"]: token["id"] for token in raw["added_tokens"]}
    raw["model"]["ignore_merges"] = True
    path.write_text(json.dumps(raw))
    tokenizer = Tokenizer.from_dir(tmp_path)
    assert not set(tokenizer.encode_text("<think>")) & set(tokenizer.controls.ids.values())
    assert tokenizer.encode_prompt("<think>") == [tokenizer.control_id("<think>")]


def test_nothing_is_added_truncated_or_padded(tmp_path):
    path = write_tokenizer(tmp_path)
    expected = Tokenizer.from_dir(tmp_path).encode_prompt("hello <|user|>")
    library = BpeTokenizer.from_file(str(path))
    library.enable_truncation(2)
    library.enable_padding(length=40)
    library.save(str(path))
    assert Tokenizer.from_dir(tmp_path).encode_prompt("hello <|user|>") == expected


def test_half_a_surrogate_pair_is_the_clients_fault(tiny):
    for encode in (tiny.encode_text, tiny.encode_prompt):
        with pytest.raises(InvalidRequest, match="surrogate"):
            encode("a\ud800")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"type": "WordLevel", "vocab": {}}}, "byte-level BPE"),
        ({"decoder": None}, "byte-level BPE"),
        ({"added_tokens": [{"id": 900, "content": "<a>", "lstrip": True}]}, "lstrip"),
        ({"added_tokens": [{"id": 900, "content": "<"}]}, "one character"),
        ({"pre_tokenizer": {"type": "Nonsense"}}, "tokenizer.json"),
        ({"model": None}, r"cannot use .*`\$\.model`"),
        ({"model": {"type": "BPE"}}, "cannot use .*got `null`"),
        ({"model": {"type": "BPE", "vocab": {"a": "1"}}}, "cannot use .*got `str`"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}}}, "cannot use .*>= 0"),
        ({"decoder": "ByteLevel"}, r"cannot use .*`\$\.decoder`"),
        ({"added_tokens": [{"id": 10**12, "content": "<a>"}]}, r"cannot read .*\.id"),
    ],
    ids=[
        *("model", "decoder", "lstrip", "one-character", "unreadable"),
        *("no-model", "no-vocabulary", "id-as-text", "negative-id", "decoder-as-text", "huge-id"),
    ],
)
def test_an_unsupported_tokenizer_is_refused_by_name(tmp_path, change, message):
    path = write_tokenizer(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError, match=message):
        Tokenizer.from_dir(tmp_path)


def test_a_folder_without_tokenizer_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Tokenizer.from_dir(tmp_path)


def test_a_huge_prompt_lets_other_threads_run(tiny):
    ticks = []
    is_done = threading.Event()

    def tick():
        while not is_done.wait(0.001):
            ticks.append(time.perf_counter())

    ticker = threading.Thread(target=tick)
    ticker.start()
    started = time.perf_counter()
    tiny.encode_text("alpha beta gamma delta " * 40_000)
    ended = time.perf_counter()
    is_done.set()
    ticker.join()
    assert sum(started < when < ended for when in ticks) > 5
