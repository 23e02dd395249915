"""Loading a causal language model with its tokenizer and renderer, and saying clearly what is missing."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch

from gradus.core import ConfigError
from gradus.core.errors import first_line
from gradus.core.frozen_record import frozen_record
from gradus.core.values import Json, JsonDict
from gradus.policies.local.chat_template import ToolCalls
from gradus.policies.local.cpu.float32_linear import use_faster_products
from gradus.policies.local.cpu.support import Autocast, autocasts
from gradus.policies.local.folders import adapter_base, check_model_source, model_kind, tokenizer_source
from gradus.policies.local.renderers import ChatRenderer
from gradus.policies.local.settings import Attention, ModelSettings, read_settings
from gradus.policies.one_at_a_time import quiet_transformers

_MOST_LAYERS = 1000


@frozen_record
class LoadedTokenizer:
    """What turns text into the tokens of a model, without its weights."""

    tokenizer: Any
    renderer: ChatRenderer
    # The folder or hub name that it came from.
    path: str
    # What the model was trained with, or what training now stores beside it.
    settings: ModelSettings = field(default_factory=ModelSettings)
    # The longest sequence that the model takes, in tokens; None if its config names none.
    context: int | None = None

    def with_settings(self, **changes: Any) -> Self:
        """Returns the same model, to be saved with other settings."""
        return replace(self, settings=self.settings.model_copy(update=changes))


@frozen_record
class LoadedModel(LoadedTokenizer):
    """A model on its device, with what turns text into its tokens."""

    model: Any
    device: torch.device
    dtype: torch.dtype
    # It samples in bfloat16 around its weights.
    autocast: bool = False


def load_model(
    path_or_name: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype = "auto",
    autocast: Autocast = False,
    device: str | torch.device = "auto",
    attention: Attention | None = None,
    keep_history: bool | None = None,
    template_options: Mapping[str, Any] | None = None,
    tool_calls: ToolCalls | None = None,
    quantize: Literal["none", "4bit"] | None = None,
) -> LoadedModel:
    """Load a causal language model from a folder or by its hub name.

    Args:
        path_or_name: a Hugging Face folder, a LoRA folder of peft's, which names its base, or a name on the hub (downloaded only because it was
            asked for by name).
        dtype: ``auto`` is float32 on a CPU and bfloat16 on a GPU.
        autocast: compute in bfloat16 around the weights; ``auto`` does so on a GPU, and on a CPU with instructions for it.
        device: ``auto`` is the first GPU if there is one.
        attention: ``sdpa``, ``eager`` or ``flash_attention_2``. None: what the model was trained with, else sdpa if the architecture has it.
        keep_history, template_options, tool_calls: see :class:`~gradus.policies.local.chat_template.ChatTemplate`. None: as the model was
            trained.
        quantize: ``4bit`` keeps the weights of linear layers in four bits (NF4, by bitsandbytes), for training adapters on them.
            None: as the model was trained.

    Raises:
        ConfigError: no such folder, files missing in it, a name that cannot be reached, a tokenizer that does not fit.
    """
    # A mistyped path is refused here, before transformers looks for it on the hub.
    name = check_model_source(os.fspath(path_or_name))
    if model_kind(Path(name)) == "served":
        raise ConfigError(
            f"the weights of {name} are on a Tinker server, which samples them (gradus eval) and trains them; name a model whose weights are "
            "here"
        )
    base = adapter_base(name) or name
    settings = _settings(
        read_settings(name) or read_settings(base),
        keep_history=keep_history,
        template_options=template_options,
        tool_calls=tool_calls,
        attention=attention,
        quantize=quantize,
    )
    place = _device(device)
    number_type = _dtype(dtype, place)
    options: JsonDict = {"dtype": number_type, "attn_implementation": settings.attention}
    if settings.attention == "flash_attention_2" and (place.type == "cpu" or find_spec("flash_attn") is None):
        raise ConfigError("attention = 'flash_attention_2' needs a GPU and the package flash-attn; leave attention out")
    if settings.quantize == "4bit":
        options |= _four_bits(number_type, place)
    tokenizer, model, published = _load_parts(base, tokenizer_source(base, name), options)
    if settings.dtype is None:
        settings = settings.model_copy(update={"dtype": published})
    if base != name:
        model = _with_adapter(model, name)
    _check_vocabulary(tokenizer, model, name)
    _put(model, place, quantized=settings.quantize == "4bit")
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        renderer=_renderer(tokenizer, getattr(model, "generation_config", None), settings),
        context=context_length(model.config),
        device=place,
        dtype=number_type,
        path=name,
        settings=settings,
        autocast=autocasts(autocast, place),
    )


def _put(model: Any, place: torch.device, *, quantized: bool) -> None:
    """Bring a model to its place, ready to sample."""
    if quantized:  # four bits were loaded to their place
        for module in model.modules():
            module.support_avx512bf16_for_cpu = False  # its packed weights compute in bfloat16 outside training alone
    else:
        model.to(place)
    model.eval()
    # Weights stay what they are; the layers get another forward.
    if place.type == "cpu":
        use_faster_products(model)


def load_tokenizer(
    path_or_name: str | os.PathLike[str],
    *,
    trained: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> LoadedTokenizer:
    """Loads what a model that another machine holds is asked and read with: tokenizer, chat template, stop tokens.

    ``trained``: the folder that says what it was trained with. ``settings``: those of :func:`load_model` that the template has. Raises
    ConfigError.
    """
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    name = check_model_source(os.fspath(path_or_name))
    stored = _settings(read_settings(trained or name), **settings)
    with quiet_transformers():
        try:
            tokenizer = cast(Any, AutoTokenizer).from_pretrained(name)
            config = cast(Any, AutoConfig).from_pretrained(name)
        except Exception as error:
            raise ConfigError(f"the tokenizer of {name} could not be loaded: {first_line(error)}") from error
        try:
            generation = cast(Any, GenerationConfig).from_pretrained(name)
        except OSError:  # many models have none
            generation = config
    return LoadedTokenizer(
        tokenizer=tokenizer,
        renderer=_renderer(tokenizer, generation, stored),
        path=name,
        settings=stored,
        context=context_length(config),
    )


def _settings(stored: ModelSettings | None, **changes: Any) -> ModelSettings:
    """Returns what a model was trained with, but for what is asked for."""
    asked = {key: value for key, value in changes.items() if value is not None}
    return (stored or ModelSettings()).model_copy(update=asked)


def _renderer(tokenizer: Any, generation: Any, settings: ModelSettings) -> ChatRenderer:
    stops = getattr(generation, "eos_token_id", None) or ()
    return ChatRenderer(
        tokenizer,
        stop_ids=(stops,) if isinstance(stops, int) else stops,
        keep_history=settings.keep_history,
        template_options=settings.template_options,
        date=settings.date,
        tool_calls=settings.tool_calls,
    )


def context_length(config: Any) -> int | None:
    """The longest sequence of a model with this ``config`` in tokens; None if it names none.

    Two kinds of rotary positions change at all places once a sequence passes the original length, also at those that a cache
    holds already. Only up to there is the model one function of its tokens.
    """
    config = config.get_text_config(decoder=True)
    rope: Any = getattr(config, "rope_parameters", None) or {}
    longest = getattr(config, "max_position_embeddings", None)
    if rope.get("rope_type") not in ("longrope", "dynamic"):
        return longest
    original = "original_max_position_embeddings"
    return rope.get(original) or getattr(config, original, longest)


@contextmanager
def evaluating(loaded: LoadedModel) -> Generator[None]:
    """Inference without dropout, under autocast if the model has it; modules in train mode are put back afterwards.

    Autocast keeps the casts of weights from one forward to the next, but not in inference mode: there it casts all of them for
    every token.
    """
    training: list[Any] = []
    if loaded.model.training:
        training = [module for module in loaded.model.modules() if module.training]
        loaded.model.eval()
    with ExitStack() as stack:
        if loaded.autocast:
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.autocast(loaded.device.type, dtype=torch.bfloat16))
        else:
            stack.enter_context(torch.inference_mode())
        try:
            yield
        finally:
            for module in training:
                module.training = True


def _dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    number_type = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(number_type, torch.dtype) or not number_type.is_floating_point:
        raise ConfigError(f"dtype must be auto, float32, bfloat16 or float16, got {dtype!r}")
    return number_type


def require_bitsandbytes(setting: str) -> None:
    """Raises ConfigError if the package that ``setting`` needs is missing; does not import it."""
    if find_spec("bitsandbytes") is None:
        raise ConfigError(f"{setting} needs bitsandbytes; pip install 'gradus-rl[quantized]', or leave it out")


def _four_bits(dtype: torch.dtype, device: torch.device) -> JsonDict:
    """Returns the arguments by which transformers loads linear layers as NF4 (arXiv 2305.14314)."""
    from transformers import BitsAndBytesConfig

    require_bitsandbytes("quantize = '4bit'")
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    return {"quantization_config": config, "device_map": {"": str(device)}}


def _load_parts(name: str, words: str, options: Json) -> tuple[Any, Any, str]:
    """The tokenizer in the folder ``words``, the model ``name``, and the dtype that this was published in, to which export rounds back."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    try:
        with quiet_transformers():
            config = cast(Any, AutoConfig).from_pretrained(name)
            _check_layers(config)
            tokenizer = cast(Any, AutoTokenizer).from_pretrained(words)
            # Its types do not know output_loading_info.
            model, report = cast(Any, AutoModelForCausalLM).from_pretrained(name, output_loading_info=True, **options)
    except Exception as error:  # a value of the wrong kind in a config can fail anywhere in a model's own code
        first = f"{type(error).__name__}: {first_line(error)}"
        raise ConfigError(
            f"the model {name} could not be loaded: {first} "
            "(a model folder needs config.json, weights and tokenizer files; a hub name needs the network or a cached copy)"
        ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        # transformers would go on with random numbers in their place.
        raise ConfigError(
            f"the weights in {name} lack {len(missing)} tensors that its config.json asks for, the first is {missing[0]}; "
            "copy the folder again, or set the config right"
        )
    return tokenizer, model, str(config.dtype or "float32").removeprefix("torch.")


def _check_layers(config: Any) -> None:
    """Raises ValueError for a number of layers that no model has: transformers would make them one by one, or none."""
    layers = getattr(config.get_text_config(decoder=True), "num_hidden_layers", 1)
    if not 1 <= layers <= _MOST_LAYERS:
        raise ValueError(f"config.json has num_hidden_layers = {layers}, expected 1 to {_MOST_LAYERS}")


def _with_adapter(model: Any, adapter: str) -> Any:
    with quiet_transformers(), warnings.catch_warnings():  # peft still reads a name that transformers is about to drop
        from peft import PeftModel

        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        return PeftModel.from_pretrained(model, str(Path(adapter).expanduser()))


def _device(name: str | torch.device) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # of a torch without CUDA it is the latter
        raise ConfigError(
            f"device is auto, cpu, cuda or cuda:NUMBER, got {str(name)!r}, which cannot be used here: {first_line(error)}"
        ) from None
    return device


def _check_vocabulary(tokenizer: Any, model: Any, name: str) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise ConfigError(
            f"the tokenizer of {name} has {len(tokenizer)} tokens, but the model's embedding has {rows} rows; "
            "use the tokenizer that belongs to the model, or resize the embedding"
        )
