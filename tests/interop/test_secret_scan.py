"""Keys are found in whatever is about to be uploaded, and are named by file and line, never shown."""

import json
from pathlib import Path

import pytest

from gradus.core import ConfigError
from gradus.interop.push import plan_push
from gradus.interop.secret_scan import FORMS, find_secrets
from tests.fakes import results_document

# Put together here, so that no file of the project holds anything that looks like a key.
LONG = "a1B2c3D4e5" * 6
KEYS = {
    "an OpenAI or Anthropic key": ["sk-" + LONG[:48], "sk-proj-" + LONG[:40], "sk-ant-api03-" + LONG],
    "a Hugging Face token": ["hf_" + LONG[:34]],
    "a GitHub token": ["ghp_" + LONG[:36], "github_pat_" + LONG],
    "a GitLab token": ["glpat-" + LONG[:20]],
    "an AWS key id": ["AKIA" + "ABCDEFGH" * 2],
    "an AWS secret key": ["aws_secret_access_key = " + LONG[:40], 'AWS_SECRET_ACCESS_KEY": "' + LONG[:40]],
    "a Google key": ["AIza" + LONG[:35]],
    "a Slack token": ["xoxb-" + "123456789012-" + LONG[:24]],
    "a Stripe key": ["sk_live_" + LONG[:24]],
    "an npm or PyPI token": ["npm_" + LONG[:36], "pypi-AgE" + LONG],
    "a private key": ["-----BEGIN RSA " + "PRIVATE KEY-----", "-----BEGIN " + "PRIVATE KEY-----"],
    "a JSON web token": [f"eyJ{LONG[:20]}.eyJ{LONG[:20]}.{LONG[:30]}"],
    "a bearer token": ["Authorization: Bearer " + LONG[:30]],
    "a password in an address": ["postgres://someone:" + "pass1234@db.example/x"],
}  # fmt: skip
PLAIN = """
Tokens of a word, task-sk-learn, hf_hub_download, sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08,
https://user@example.org/path, http://127.0.0.1:8000/v1, Authorization: Bearer TOKEN, Bearer $OPENAI_API_KEY, bearer of good news,
{"eos_token": "<|im_end|>", "max_tokens": 300}, sk-short, model-00001-of-00002.safetensors, AKIA, ghp_, postgres://host:5432/name
"""


def test_every_form_is_known_and_ordinary_text_is_none() -> None:
    assert set(KEYS) == set(FORMS)
    for kind, keys in KEYS.items():
        for key in keys:
            assert (2, kind) in list(find_secrets(f"first\n text {key} more\n".encode())), key
            assert (1, kind) in list(find_secrets(json.dumps({"text": f"say {key}\n"}).encode())), key
    assert list(find_secrets(PLAIN.encode())) == []


def test_values_of_the_environment_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "quoted/value")
    monkeypatch.setenv("OTHER_TOKEN", "EMPTY")
    assert list(find_secrets(b"a\nb quoted/value EMPTY")) == [(2, "the value of $SOME_API_KEY")]


def refused(source: Path, where: str, key: str) -> None:
    with pytest.raises(ConfigError, match=where) as error:
        plan_push(source, "me/mine")
    assert key not in str(error.value)
    assert key[:12] not in str(error.value)


def test_push_refuses_a_model_with_a_key_in_any_of_its_files(tmp_path: Path) -> None:
    key = KEYS["a Hugging Face token"][0]
    best = tmp_path / "run" / "grpo" / "best"
    best.mkdir(parents=True)
    header = json.dumps({"__metadata__": {"note": "x"}}).encode()
    clean = {
        "config.json": b'{"model_type": "qwen2"}\n', "gradus.json": b"{}\n", "chat_template.jinja": b"{{ x }}\n", "tokenizer.json": b"{}\n",
        "model.safetensors": len(header).to_bytes(8, "little") + header + bytes(64), "training.log": b"step 1\n", "SHA256SUMS": b"",
    }  # fmt: skip
    for name, content in clean.items():
        (best / name).write_bytes(content)
    results = tmp_path / "run" / "results.json"
    document = results_document("adder")
    results.write_text(json.dumps(document))
    plan_push(tmp_path / "run", "me/mine")
    for name, content in clean.items():
        spoiled = json.dumps({"__metadata__": {"note": key}}).encode()
        (best / name).write_bytes(
            len(spoiled).to_bytes(8, "little") + spoiled + bytes(64)
            if name.endswith("tensors")
            else content + key.encode()
        )
        refused(tmp_path / "run", name, key)
        (best / name).write_bytes(content)
    results.write_text(json.dumps({**document, "environment": key}))
    refused(tmp_path / "run", "results.json", key)
