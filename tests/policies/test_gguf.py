"""A GGUF file that is written is the same function of the same tokens, for our own reader and for llama.cpp."""

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from model_matrix import make_model
from tiny_qwen2 import SHAPE, byte_tokenizer
from transformers import AutoModelForCausalLM

from gradus.core import ConfigError
from gradus.policies.local.export import export_model
from gradus.policies.local.folders import check_model_source, find_model
from gradus.policies.local.gguf import dequantize, read_source, source_facts
from gradus.policies.local.gguf_writer import go_template
from gradus.policies.local.loading import load_model
from gradus.policies.local.sampling import SamplingConfig
from gradus.policies.local.settings import ModelSettings, write_settings
from gradus.training.run.checkpoints import save_model

pytest.importorskip("gguf")
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama3": ("LlamaConfig", {"rope_parameters": LLAMA3, "hidden_size": 96, "head_dim": 32, "attention_bias": True}),
    "qwen2": ("Qwen2Config", {"intermediate_size": 48}),  # rows that cannot be cut into blocks of 32
    "qwen3": ("Qwen3Config", {"head_dim": 128, "vocab_size": 384}),  # rows for more tokens than there are
}
FORMATS = {"f16": 0.02, "q8_0": 0.2, "q4_0": 3.0}  # largest difference of any token's log-prob, nats
TEXT = "Don't  STOP: it's 12345 café\n\n x=3.14; (a+b) 中文!\r\n end"


def tiny(name: str, folder: Path) -> Path:
    """A random model with a system prompt and sampling that it was trained with."""
    kind, changes = MODELS[name]
    tokenizer = byte_tokenizer()
    shape = {
        "vocab_size": len(tokenizer),
        "initializer_range": 0.15,
        "max_position_embeddings": 512,
        **SHAPE,
        **changes,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = getattr(transformers, kind)(bos_token_id=None, eos_token_id=tokenizer.eos_token_id, **shape)
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    sampling = SamplingConfig(temperature=0.5, top_p=0.9, max_new_tokens=300)
    write_settings(folder, ModelSettings(system_prompt='Say "yes" or\nno.', sampling=sampling))
    return folder


def logprobs(folder: Path, ids: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])  # transformers reads no scaled rotary frequencies
def test_our_reader_gets_the_same_model_back(tmp_path: Path, name: str, kind: str) -> None:
    folder = tiny(name, tmp_path / "model")
    result = export_model(folder, tmp_path / "out", gguf=kind)
    assert result.dtype == kind
    dequantize(tmp_path / "out" / f"out-{kind}.gguf", tmp_path / "again")
    ids = load_model(folder).tokenizer(TEXT)["input_ids"]
    assert load_model(tmp_path / "again").tokenizer.chat_template == load_model(folder).tokenizer.chat_template
    difference = logprobs(folder, ids) - logprobs(tmp_path / "again", ids)
    assert difference.abs().max() < FORMATS[kind]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_reads_the_same_tokens_prompt_and_log_probs(tmp_path: Path, name: str) -> None:
    xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp itself is needed: pip install xllamacpp")
    folder = tiny(name, tmp_path / "model")
    loaded = load_model(folder)
    ids = loaded.tokenizer(TEXT)["input_ids"]
    expected = logprobs(folder, ids)
    for kind, tolerance in FORMATS.items():
        export_model(folder, tmp_path / kind, gguf=kind)
        settings = xllamacpp.CommonParams()
        settings.model.path = str(tmp_path / kind / f"{kind}-{kind}.gguf")
        settings.n_ctx, settings.n_parallel, settings.warmup, settings.verbosity = 512, 1, False, 0
        server = xllamacpp.Server(settings)
        tokens = ask(server, "/tokenize", {"content": TEXT, "add_special": True})["tokens"]
        assert tokens == ids
        messages = loaded.renderer.messages("Be brief.", "One?", "Two.", "Three?")
        assert ask(server, "/apply-template", {"messages": messages})["prompt"] == loaded.renderer.render(messages)
        # An answer is a whole letter: the server says nothing of half a character.
        letter = [[loaded.tokenizer.convert_tokens_to_ids("a"), 100.0]]
        body = {"prompt": ids, "n_predict": 1, "n_probs": len(expected), "temperature": 1.0, "logit_bias": letter}
        (first,) = ask(server, "/completion", body)["completion_probabilities"]
        tops = first["top_logprobs"]
        assert len(tops) > len(expected) // 2
        gaps = [abs(top["logprob"] - float(expected[top["id"]])) for top in tops]
        assert max(gaps) < tolerance


def ask(server: Any, route: str, body: dict[str, Any]) -> dict[str, Any]:
    """One call of llama.cpp's own server."""
    request = urllib.request.Request(
        server.listening_address + route, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def test_the_modelfile_writes_the_prompt_that_the_model_was_trained_with(tmp_path: Path) -> None:
    """Read as Ollama reads it: system prompt, then the messages in turn, up to where the model speaks."""
    folder = tiny("qwen2", tmp_path / "model")
    export_model(folder, tmp_path / "out", gguf="q8_0")
    text = (tmp_path / "out" / "Modelfile").read_text()
    assert text.startswith("FROM ./out-q8_0.gguf\n")
    parameters = dict(re.findall(r"^PARAMETER (\S+) (.*)$", text, re.MULTILINE))
    assert (parameters["temperature"], parameters["top_p"]) == ("0.5", "0.9")
    assert parameters["num_predict"] == "300"
    assert parameters["stop"] == '"""<|im_end|>"""'
    assert 'SYSTEM """Say "yes" or\nno."""' in text
    template = text.split('TEMPLATE """')[1].split('"""')[0]
    renderer = load_model(folder).renderer
    for system in ("Say yes.", ""):
        messages = renderer.messages(system, "One?", "Two.", "Three?")
        assert as_ollama(template, system, messages) == renderer.render(messages)


def as_ollama(template: str, system: str, messages: list[dict[str, str]]) -> str:
    """What text/template of Go makes of a template of this form."""
    form = (
        r"{{ if \.System }}(.*){{ \.System }}(.*){{ else }}(.*){{ end }}{{ range \.Messages }}"
        r'{{ if eq \.Role "user" }}(.*){{ else if eq \.Role "assistant" }}(.*){{ end }}{{ end }}'
    )
    match = re.fullmatch(form, template, re.DOTALL)
    assert match
    before, between, bare, user, assistant = match.groups()
    turns = {"user": user, "assistant": assistant, "system": ""}
    head = before + system + between if system else bare
    return head + "".join(turns[each["role"]].replace("{{ .Content }}", each["content"]) for each in messages)


def test_a_template_that_is_no_frame_is_left_to_the_file(tmp_path: Path) -> None:
    renderer = load_model(tiny("llama", tmp_path / "model")).renderer
    assert go_template(renderer, "") is not None
    renderer._template = renderer._template.replace("<|im_end|>", "<|im_end|>{{ loop.index }}")
    assert go_template(renderer, "") is None


def test_models_of_which_no_file_is_written_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Llama, Qwen 2, Qwen 3, and this model is gemma2"):
        export_model(make_model("gemma2", tmp_path / "gemma2"), tmp_path / "out", gguf="q8_0")
    with pytest.raises(ConfigError, match=r"tokenizer of byte pairs.*this one's is Unigram"):
        export_model(make_model("llama", tmp_path / "llama"), tmp_path / "out", gguf="q8_0")
    with pytest.raises(ConfigError, match="gguf is f16, q8_0, q4_0, got 'q9'"):
        export_model(tmp_path / "llama", tmp_path / "out", gguf="q9")
    assert not (tmp_path / "out").exists()


def test_what_is_no_model_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("not weights")
    with pytest.raises(ConfigError, match=r"text\.gguf is not a GGUF file"):
        dequantize(tmp_path / "text.gguf", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_path_of_a_gguf_file_is_a_model_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Loading, checking and saving take the file; the card of what was trained from it says where it came from."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    export_model(tiny("llama", tmp_path / "model"), tmp_path / "tiny", gguf="f16")
    file = tmp_path / "tiny" / "tiny-f16.gguf"
    capfd.readouterr()
    folder = find_model(file)
    assert capfd.readouterr().err == f"tiny-f16.gguf is dequantized once, into {folder}\n"
    assert folder.is_relative_to(tmp_path / "cache")
    assert find_model(file) == folder == Path(check_model_source(str(file)))
    loaded = load_model(folder)
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    save_model(tmp_path / "trained", loaded)
    source = read_source(tmp_path / "trained")
    assert source == {"file": "tiny-f16.gguf", "name": "tiny-f16", "license": "", "quantization": "F16"}
    assert source_facts(tmp_path / "trained") == ["trained from tiny-f16, dequantized from F16 (`tiny-f16.gguf`)"]
    export_model(tmp_path / "trained", tmp_path / "exported")
    assert "dequantized from F16" in (tmp_path / "exported" / "README.md").read_text()
    with pytest.raises(ConfigError, match="expected a GGUF file"):
        find_model(tmp_path / "other.gguf")
