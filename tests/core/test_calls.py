"""Calls of tools are read out of what models write, in every family's form, where they stand and with what is wrong."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.core import ToolCall
from gradus.core.calls import FORMS, read_message, write_calls

ARGUMENTS = {"item": 'a "b" {c}', "count": 3, "deep": {"list": [1, None, True]}}
WRITTEN = json.dumps({"name": "add", "arguments": ARGUMENTS})
FORMATS = {
    "json": ["{}", "Let me see.\n{}", "[{}, {}]", "{}\n{}", "```json\n{}\n```", "So:\n```\n[{}, {}]\n```\n", "`{}`"],
    "hermes": ["<tool_call>\n{}\n</tool_call>", "Well:\n<tool_call>{}</tool_call>\n<tool_call>\n{}\n</tool_call>"],
}


@pytest.mark.parametrize(("form", "template"), [(form, each) for form, several in FORMATS.items() for each in several])
def test_calls_are_read_where_they_stand(form, template):
    text = template.replace("{}", WRITTEN)
    for message in (read_message(text), read_message(text, form)):
        assert len(message.calls) == template.count("{}")
        for call in message.calls:
            assert (call.name, call.arguments, call.fault) == ("add", ARGUMENTS, None)
            assert WRITTEN in text[call.start : call.end]
        assert "add" not in message.content


@pytest.mark.parametrize(
    ("form", "text"),
    [("json", json.dumps({"name": "add", "parameters": ARGUMENTS})), ("json", "<|python_tag|>" + WRITTEN)],
)
def test_families(form, text):
    for message in (read_message(text), read_message(text, form)):
        assert [(call.name, call.arguments, call.fault) for call in message.calls] == [("add", ARGUMENTS, None)]
        assert message.calls[0].start == len(text) - len(text.lstrip())


@pytest.mark.parametrize(
    "text", ['{"name": "stop"}', '{"name": "stop", "arguments": null}', '{"name": "stop", "arguments": {}}']
)
def test_a_tool_without_arguments_can_be_called_by_its_name(text):
    assert [(call.name, call.arguments, call.fault) for call in read_message(text).calls] == [("stop", {}, None)]


def test_values_of_the_xml_form_have_the_types_of_the_schema():
    text = "<tool_call>\n<function=add>\n<parameter=a>\n3\n</parameter>\n<parameter=s>\n3\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n</function>\n</tool_call>"
    properties = {"a": {"type": "integer"}, "s": {"type": "string"}, "b": {"type": "boolean"}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"properties": properties}}}]
    (call,) = read_message(text, tools=tools).calls
    assert call.arguments == {"a": 3, "s": "3", "b": True}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "3", 3),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "3", "3"),
        ({"type": ["string", "null"]}, "3", "3"),
        ({"type": ["boolean", "null"]}, "True", True),
        ({"type": "integer"}, "3.5", 3.5),
        ({"type": "array"}, "[" * 100_000, "[" * 100_000),
        ({}, "3", "3"),
    ],
)
def test_a_value_of_the_xml_form_has_one_of_the_types_that_the_schema_allows(schema, text, value):
    """An optional integer stayed a text, an optional text of digits became a number: both were refused. Deep nesting ended the run."""
    written = f"<tool_call>\n<function=add>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
    tools = [{"name": "add", "parameters": {"properties": {"a": schema}}}]
    (call,) = read_message(written, tools=tools).calls
    assert call.arguments == {"a": value}
    assert type(call.arguments["a"]) is type(value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"name": "add", "arguments": {"a": 1}', "not JSON"),
        ('{"name": "add", "arguments": [1]}', "should be an object"),
        ('{"arguments": {}}', "keys name and arguments"),
        (WRITTEN + " and so on", "expected the end of the answer"),
        ("<tool_call>\n" + WRITTEN, "expected </tool_call>"),
        ("<tool_call>add(1)</tool_call>", "not JSON"),
        ("<tool_call><function=add><parameter=a>1</function></tool_call>", "and </function> in the call"),
        ('{"name": "add", "arguments": {"a": NaN}}', "not JSON"),
        ("{" * 40 + '"arguments"', "not JSON"),
    ],
)
def test_what_cannot_be_read_says_why(text, said):
    faults = [call for call in read_message(text).calls if call.fault == "malformed"]
    assert len(faults) == 1
    assert said in faults[0].error
    assert faults[0].end > faults[0].start


@pytest.mark.parametrize(
    "text",
    [
        "seven",
        "",
        "{7}",
        '{"total": 5}',
        '{"name": "Ann", "age": 3}',
        'the set {"a"}',
        "<think>" + WRITTEN + "</think>7",
    ],
)
def test_an_answer_is_no_call(text):
    message = read_message(text)
    assert (message.calls, message.content) == ((), text)


names = st.from_regex(r"[a-z_][a-z0-9_]{0,9}", fullmatch=True)
scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=9)
values = st.recursive(
    scalars, lambda each: st.lists(each, max_size=3) | st.dictionaries(names, each, max_size=3), max_leaves=6
)


@given(st.lists(st.tuples(names, st.dictionaries(names, values, max_size=3)), min_size=1, max_size=3))
@settings(max_examples=30)
def test_what_is_written_is_read(calls):
    text = write_calls([ToolCall(name=name, arguments=arguments) for name, arguments in calls])
    assert [(call.name, call.arguments) for call in read_message(text).calls] == calls


@given(
    st.text(alphabet=st.sampled_from('{}[]"<>|/:,_aetool_callname 1\n'), max_size=60), st.sampled_from(sorted(FORMS))
)
@settings(max_examples=60)
def test_nothing_that_a_model_writes_raises(noise, form):
    for head in ("", "<tool_call>", "<tool_call><function=a>", '{"name": '):
        for call in read_message(head + noise, form).calls:
            assert 0 <= call.start < call.end <= len(head + noise)
