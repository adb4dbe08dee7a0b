"""A small Llama with random weights, written to disk without torch and without a download.

Tests, the demo and the benchmarks serve it. What it says is noise; its shapes, its speed and its
tokenizer (one token a byte) are what they measure with. Nothing here may import the engine.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PAD, BEGIN, END = "<|pad|>", "<|begin|>", "<|end|>"
ROLES = ("system", "user", "assistant", "tool")
SPECIAL_TOKENS = (PAD, BEGIN, END, *(f"<|{role}|>" for role in ROLES))
# Logits of printable ASCII get this spread, those of all other tokens are zero: greedy output never
# ends a text early, and never stops in the middle of a UTF-8 character, which would hold back
# streamed text.
LOGIT_SPREAD = 4.0

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('unknown role: ' + message['role']"
    " + '; use system, user, assistant or tool') }}"
    "{% endif %}"
    "{{ '<|' + message['role'] + '|>' + (message['content'] or '') + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class SampleModelShape:
    """The size of the model; the default has about 26 million parameters.

    ``hidden_size`` is ``heads`` times a head size that the CPU attention backend has (32, 64, 128).
    """

    layers: int = 8
    hidden_size: int = 512
    intermediate_size: int = 1_536
    heads: int = 8
    kv_heads: int = 4
    vocabulary: int = 320
    max_length_tokens: int = 4_096
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuses what no engine could load.

        Raises:
            ValueError: a size does not divide another, or the vocabulary lacks room for the tokens.
        """
        if self.hidden_size % self.heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} must be a multiple of heads {self.heads}"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")
        if self.vocabulary < 256 + len(SPECIAL_TOKENS):
            raise ValueError(
                f"vocabulary {self.vocabulary} must be at least {256 + len(SPECIAL_TOKENS)}"
            )


def write_sample_model(
    path: Path, shape: SampleModelShape | None = None, *, weights: bool = True
) -> None:
    """Writes a model folder that vLLM and transformers load; the same shape gives the same bytes.

    Files: ``config.json``, ``generation_config.json``, ``model.safetensors`` (bfloat16),
    ``tokenizer.json``, ``tokenizer_config.json`` with a chat template. Without ``weights`` the
    engine must make them itself (vLLM's ``--load-format dummy``), and then says any token: all are
    whole texts, which leaves no entries for prompts beyond ASCII.
    """
    shape = shape or SampleModelShape()
    path.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("config.json", _config(shape)),
        ("generation_config.json", {"bos_token_id": 257, "eos_token_id": 258, "pad_token_id": 256}),
        ("tokenizer.json", _tokenizer() if weights else _tokenizer_of_texts(shape)),
        ("tokenizer_config.json", _tokenizer_config(shape, special=weights)),
    ):
        (path / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    if weights:
        _write_safetensors(path / "model.safetensors", _weights(shape))


def _config(shape: SampleModelShape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.hidden_size // shape.heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "max_position_embeddings": shape.max_length_tokens,
        "vocab_size": shape.vocabulary,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "pad_token_id": 256,
        "bos_token_id": 257,
        "eos_token_id": 258,
    }


def _byte_characters() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = (byte for byte in range(256) if byte not in shown)
    table = {byte: chr(byte) for byte in shown}
    table |= {byte: chr(256 + index) for index, byte in enumerate(hidden)}
    return [table[byte] for byte in range(256)]


def _tokenizer_of_texts(shape: SampleModelShape) -> dict[str, Any]:
    """Bytes above ASCII, and entries that are nobody's, are texts here; no token is left out.

    vLLM decodes a prompt again at every token of an answer that has come to no text yet: the
    engine would spend more time on that than any model that speaks.
    """
    tokenizer = _tokenizer()
    vocabulary = tokenizer["model"]["vocab"]
    ascii_only = {token: entry for token, entry in vocabulary.items() if entry < 128}
    others = {entry: f"#{entry}" for entry in range(128, shape.vocabulary)}
    for token in tokenizer["added_tokens"]:
        token["special"] = False
        others[token["id"]] = token["content"]
    texts = {token: entry for entry, token in others.items()}
    tokenizer["model"]["vocab"] = ascii_only | texts
    return tokenizer


def _tokenizer() -> dict[str, Any]:
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    vocabulary = {character: byte for byte, character in enumerate(_byte_characters())}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 256 + index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index, token in enumerate(SPECIAL_TOKENS)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def _tokenizer_config(shape: SampleModelShape, *, special: bool) -> dict[str, Any]:
    named = {"bos_token": BEGIN, "eos_token": END, "pad_token": PAD}
    # Whatever is named here is left out of texts.
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": shape.max_length_tokens,
        **(named if special else {}),
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _weights(shape: SampleModelShape) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    random = np.random.default_rng(shape.seed)
    hidden, kv_size = shape.hidden_size, shape.hidden_size // shape.heads * shape.kv_heads

    def normal(rows: int, columns: int, spread: float = 0.02) -> npt.NDArray[np.float32]:
        return random.standard_normal((rows, columns), dtype=np.float32) * np.float32(spread)

    ones = np.ones(hidden, dtype=np.float32)
    yield "model.embed_tokens.weight", normal(shape.vocabulary, hidden, 1.0)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.self_attn.q_proj.weight", normal(hidden, hidden)
        yield f"{prefix}.self_attn.k_proj.weight", normal(kv_size, hidden)
        yield f"{prefix}.self_attn.v_proj.weight", normal(kv_size, hidden)
        yield f"{prefix}.self_attn.o_proj.weight", normal(hidden, hidden)
        yield f"{prefix}.mlp.gate_proj.weight", normal(shape.intermediate_size, hidden)
        yield f"{prefix}.mlp.up_proj.weight", normal(shape.intermediate_size, hidden)
        yield f"{prefix}.mlp.down_proj.weight", normal(hidden, shape.intermediate_size)
        yield f"{prefix}.input_layernorm.weight", ones
        yield f"{prefix}.post_attention_layernorm.weight", ones
    yield "model.norm.weight", ones
    output = np.zeros((shape.vocabulary, hidden), dtype=np.float32)
    output[32:127] = normal(127 - 32, hidden, LOGIT_SPREAD / hidden**0.5)
    yield "lm_head.weight", output


def _bfloat16(values: npt.NDArray[np.float32]) -> bytes:
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)  # to nearest, ties to even
    return (rounded >> 16).astype("<u2").tobytes()


def _write_safetensors(path: Path, tensors: Iterator[tuple[str, npt.NDArray[np.float32]]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, values in tensors:
        start = len(data)
        data += _bfloat16(values)
        header[name] = {
            "dtype": "BF16",
            "shape": list(values.shape),
            "data_offsets": [start, len(data)],
        }
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
