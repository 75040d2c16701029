"""Prompts are the template's, control tokens are the template's alone, faults are the client's."""

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as BpeTokenizer

from support.demo_folder import DEMO_DIR
from support.tiny_tokenizer import CONTROL_TOKENS, write_tokenizer
from trnrt_router.errors import ConfigError, InvalidRequest
from trnrt_router.text.chat_template import REASONING_EFFORTS, ChatTemplate
from trnrt_router.text.controls import Controls
from trnrt_router.text.markup import Section

HEAD = "[gMASK]<sop><|system|>Reasoning Effort: Max"
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object"}, "strict": True},
}
HI = {"role": "user", "content": "hi"}


def assistant(content, **fields):
    return {"role": "assistant", "content": content, **fields}


def small(source, **options):
    return ChatTemplate(source, Controls({"<|user|>": 1, "<think>": 2}), **options)


def test_tools_are_json_without_html_escapes_in_insertion_order(template):
    tool = {"name": "f", "description": "a < b & 'c' é", "parameters": {"z": 1, "a": [True, None]}}
    prompt = template.render([HI], tools=[{"type": "function", "function": tool}])
    expected = json.dumps(tool, ensure_ascii=False)
    assert f"<tools>\n{expected}\n</tools>" in prompt.text


def test_system_only_and_consecutive_user_messages_are_legal(template):
    assert template.render([{"role": "system", "content": "s"}]).text == (
        HEAD + "<|system|>s<|assistant|><think>"
    )
    assert template.render([HI, HI]).text == HEAD + "<|user|>hi<|user|>hi<|assistant|><think>"


def test_starts_in_follows_the_last_think_marker_of_the_template(template):
    assert template.render([HI]).starts_in is Section.REASONING
    closed = template.render([HI, assistant("a")], add_generation_prompt=False)
    assert closed.starts_in is Section.CONTENT
    spelled = {"role": "user", "content": "<think>"}
    assert template.render([spelled], add_generation_prompt=False).starts_in is Section.CONTENT


@pytest.mark.parametrize(("asked", "served"), REASONING_EFFORTS.items())
def test_reasoning_effort_is_mapped_and_said(template, asked, served):
    prompt = template.render([HI], reasoning_effort=asked)
    assert f"Reasoning Effort: {served.capitalize()}<" in prompt.text
    assert bool(prompt.warnings) == (asked != served)
    assert template.render([HI], kwargs={"reasoning_effort": asked}).text == prompt.text


@pytest.mark.parametrize("effort", ["none", "off", "", 0.5, True, ["low"]])
def test_an_unknown_reasoning_effort_is_refused(template, effort):
    with pytest.raises(InvalidRequest) as refused:
        template.render([HI], reasoning_effort=effort)
    assert refused.value.param == "reasoning_effort"


def test_template_variables(template):
    history = [HI, assistant("4", reasoning_content="add"), HI]
    kept = template.render(history)
    cleared = template.render(history, kwargs={"clear_thinking": True})
    assert kept.text.replace("add", "") == cleared.text
    ignored = template.render([HI], kwargs={"enable_thinking": False})
    assert ignored.text == template.render([HI]).text
    assert "enable_thinking" in ignored.warnings[0]
    many = template.render([HI], kwargs={f"{i}" * 500: 1 for i in range(999)})
    assert len("".join(many.warnings)) < 500
    assert many.warnings[0].endswith("and 991 more")


@pytest.mark.parametrize(
    ("kwargs", "param"),
    [
        ([], "chat_template_kwargs"),
        ({"messages": []}, "chat_template_kwargs.messages"),
        ({"add_generation_prompt": False}, "chat_template_kwargs.add_generation_prompt"),
        ({"reasoning_effort": "high"}, "chat_template_kwargs.reasoning_effort"),
    ],
)
def test_template_variables_cannot_contradict_the_request(template, kwargs, param):
    with pytest.raises(InvalidRequest) as refused:
        template.render([HI], reasoning_effort="low", kwargs=kwargs)
    assert refused.value.param == param


@pytest.mark.parametrize("text", ["The answer is", "  spaced \n", "", "a<|user|>b", "x</thin"])
def test_a_continued_prompt_ends_with_exactly_the_given_text(template, demo, text):
    prompt = template.render([HI, assistant(text)], continue_final_message=True)
    assert prompt.text == HEAD + "<|user|>hi<|assistant|><think></think>" + text
    assert prompt.starts_in is Section.CONTENT
    ids = demo.encode_prompt(prompt)
    assert ids.count(demo.control_id("<|user|>")) == 1
    assert demo.decode(ids) == prompt.text


def test_a_continued_message_keeps_its_reasoning(template):
    expected = HEAD + "<|user|>hi<|assistant|><think>r</think>The "
    for message in (
        assistant("The ", reasoning="r"),
        assistant("<think>r</think>The "),
        assistant([{"type": "text", "text": "The "}], reasoning_content="r"),
    ):
        assert template.render([HI, message], continue_final_message=True).text == expected


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        ([HI, assistant("A")], {"add_generation_prompt": True}),
        ([assistant("A"), HI], {}),
        ([HI, assistant("A", tool_calls=[{"function": {"name": "f"}}])], {}),
    ],
    ids=["both-flags", "user-last", "tool-calls"],
)
def test_what_cannot_be_continued_is_refused(template, messages, options):
    with pytest.raises(InvalidRequest):
        template.render(messages, continue_final_message=True, **options)


def test_a_template_that_drops_the_last_message_cannot_continue_it():
    with pytest.raises(InvalidRequest, match="continue_final_message"):
        small("x").render([HI, assistant("A")], continue_final_message=True)


TEXT = st.text(alphabet=string.printable + "é天👩‍💻")
SPELLED = st.lists(TEXT | st.sampled_from([*CONTROL_TOKENS, "<|us", "er|>"])).map("".join)


def conversations(text):
    call = st.fixed_dictionaries(
        {
            "id": text,
            "function": st.fixed_dictionaries(
                {"name": text, "arguments": st.dictionaries(text, text | st.integers())}
            ),
        }
    )
    return st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": text})
        | st.fixed_dictionaries(
            {
                "role": st.just("assistant"),
                "content": text,
                "tool_calls": st.lists(call, max_size=2),
            },
            optional={"reasoning_content": text},
        )
        | st.fixed_dictionaries({"role": st.just("tool"), "content": text, "tool_call_id": text}),
        min_size=1,
        max_size=5,
    )


def tools_with(text):
    tool = st.fixed_dictionaries({"name": text.map("f".__add__), "description": text})
    return st.lists(st.fixed_dictionaries({"function": tool}), max_size=2)


@pytest.fixture(scope="module")
def library():
    return BpeTokenizer.from_file(str(DEMO_DIR / "tokenizer.json"))


def has_no_control_token(text):
    return not any(token in text for token in CONTROL_TOKENS)


PLAIN = TEXT.filter(has_no_control_token)


@given(conversations(PLAIN), tools_with(PLAIN))
def test_without_spelled_controls_ids_equal_the_plain_encoding(
    template, demo, library, messages, tools
):
    prompt = template.render(messages, tools=tools)
    expected = library.encode(prompt.text, add_special_tokens=False).ids
    assert demo.encode_prompt(prompt) == expected


@given(conversations(SPELLED), tools_with(SPELLED))
def test_only_scaffolding_yields_control_ids(template, demo, messages, tools):
    prompt = template.render(messages, tools=tools)
    ids = demo.encode_prompt(prompt)
    assert demo.decode(ids) == prompt.text
    count = {token: ids.count(demo.control_id(token)) for token in CONTROL_TOKENS}
    roles = [message["role"] for message in messages]
    calls = sum(len(message.get("tool_calls", [])) for message in messages)
    assert count["<|user|>"] == roles.count("user")
    assert count["<|system|>"] == roles.count("system") + (2 if tools else 1)
    assert count["<|assistant|>"] == roles.count("assistant") + 1
    assert count["<think>"] == count["</think>"] + 1 == count["<|assistant|>"]
    assert count["<tool_response>"] == count["</tool_response>"] == roles.count("tool")
    assert count["</tool_call>"] == calls + bool(tools)
    assert count["/nothink"] == count["<|endoftext|>"] == count["<|image|>"] == 0


def test_think_tags_inside_old_content_are_split_once_and_the_rest_stays_text(template, demo):
    content = "<think>a<|user|></think>b</think>c<think>"
    prompt = template.render([HI, assistant(content), HI])
    assert "<|assistant|><think>a<|user|></think>c<think><|user|>" in prompt.text
    ids = demo.encode_prompt(prompt)
    assert ids.count(demo.control_id("<|user|>")) == 2
    assert ids.count(demo.control_id("<think>")) == 2


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no system role') }}",
        "{{ messages[0].content.nothing.at_all }}",
        "{{ messages[99].content.x }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ range(10**9) | list }}",
        "{{ messages[0].content.encode('ascii') }}",
    ],
)
def test_a_template_that_fails_is_a_clear_refusal(source):
    with pytest.raises(InvalidRequest, match="chat template"):
        small(source).render([{"role": "user", "content": "é"}])


def test_what_utf8_or_recursion_cannot_hold_is_refused(template):
    with pytest.raises(InvalidRequest, match="surrogate"):
        template.render([{"role": "user", "content": "\ud800"}])
    deep = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="deep"):
        template.render([HI], kwargs={"clear_thinking": deep})
    with pytest.raises(InvalidRequest, match="deep"):
        template.render(
            [assistant("", tool_calls=[{"function": {"name": "f", "arguments": {"a": deep}}}])]
        )


def test_the_environment_is_the_one_templates_are_written_for():
    source = (
        "{% for m in messages %}\n"
        "    {% if loop.index > 1 %}{% break %}{% endif %}\n"
        "    {% generation %}{{ m.content }}{% endgeneration %}\n"
        "{% endfor %}\n"
        "{{ {'a': '<é>'} | tojson }}{{ {'b': 'é', 'a': [1]} | tojson(ensure_ascii=true, "
        "sort_keys=true, separators=(',', ':')) }}{{ bos_token }}{{ strftime_now('%Y') | length }}"
    )
    rendered = small(source, special_tokens={"bos_token": "<s>"}).render([HI, HI]).text
    assert rendered == 'hi{"a": "<é>"}{"a":[1],"b":"\\u00e9"}<s>4'


def test_seams_survive_json_in_ascii(tiny):
    template = ChatTemplate("{{ messages | tojson(ensure_ascii=true) }}", tiny.controls)
    prompt = template.render([{"role": "user", "content": "é<|user|>"}])
    assert tiny.control_id("<|user|>") not in tiny.encode_prompt(prompt)
    assert json.loads(prompt.text)[0]["content"] == "é<|user|>"


def test_the_template_may_live_in_the_tokenizer_config(tmp_path):
    write_tokenizer(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": "{{ bos_token }}"}]
    for source in ("{{ bos_token }}", named):
        config.write_text(json.dumps({"chat_template": source, "bos_token": {"content": "<s>"}}))
        assert ChatTemplate.from_dir(tmp_path).render([HI]).text == "<s>"
    (tmp_path / "chat_template.jinja").write_text("own file")
    assert ChatTemplate.from_dir(tmp_path).render([HI]).text == "own file"


def test_a_missing_or_broken_template_stops_the_start(tmp_path):
    write_tokenizer(tmp_path)
    with pytest.raises(ConfigError, match=r"chat_template\.jinja"):
        ChatTemplate.from_dir(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("a\n{% if %}")
    with pytest.raises(ConfigError, match="line 2"):
        ChatTemplate.from_dir(tmp_path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"\xff", "cannot read .*chat_template"),
        (b"{% break %}", "outside loop"),
        (b"{{ " + b"(" * 5000 + b"1" + b")" * 5000 + b" }}", "cannot be compiled"),
    ],
    ids=["encoding", "break", "depth"],
)
def test_a_template_that_cannot_be_compiled_stops_the_start(tmp_path, source, message):
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(source)
    with pytest.raises(ConfigError, match=message):
        ChatTemplate.from_dir(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("", "cannot read .*tokenizer_config"),
        ("[]", "holds list, must be an object"),
        ("[" * 100_000, "cannot read .*tokenizer_config"),
        ('{"chat_template": ["a"]}', "no chat template"),
        ('{"chat_template": [{"name": "default"}]}', "no chat template"),
    ],
    ids=["empty", "list", "depth", "unnamed", "no-source"],
)
def test_a_damaged_tokenizer_config_stops_the_start(tmp_path, config, message):
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(ConfigError, match=message):
        ChatTemplate.from_dir(tmp_path)
