"""hopflow's networks in transformers: `AutoModel.from_pretrained(folder)` after `import hopflow.adapters.transformers`.

The classes are part of hopflow, so that no remote code is needed. `HopflowModel.generate` samples with hopflow's own
sampler, and drives the streamers of transformers: drafts (`put_draft`) and tokens that no later step changes (`put`).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..flow import Flow
from ..models.model import Model
from ..network.network import device_of, is_autoregressive, time_dtype
from ..runs import config_file, hub
from ..runs.pretrained import Pretrained, from_pretrained, save_pretrained
from ..runs.storage import from_plain
from ..sampling.generate import generate, infill
from ..sampling.generation import HOLE
from ..sampling.stream import Frame, stream
from ..system.safe_text import MASK

try:
    from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import MaskedLMOutput
except ImportError:
    raise ImportError("transformers is not installed: pip install 'hopflow[eval]'", name="transformers") from None

LOADED = ("config", "device_map", "dtype", "torch_dtype", "revision", "local_files_only")
"""Keywords of `HopflowModel.from_pretrained` that it uses."""
IGNORED = ("_from_auto", "trust_remote_code", "use_safetensors", "attn_implementation", "adapter_kwargs")
"""Keywords that transformers passes, and that make no difference here."""


class HopflowConfig(PretrainedConfig):
    """The content of config.json of a saved network: `model`, `flow`, `tokenizer`, `recipe` and `sha256`."""

    model_type = config_file.FORMAT

    def __init__(self, **content: Any) -> None:
        super().__init__(**content)


class TextTokenizer:
    """The tokenizer of a saved network with the method that streamers call; masks are shown as ░."""

    def __init__(self, tokenizer: Any, data: int) -> None:
        self.tokenizer, self.data = tokenizer, data

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text)
        return ids

    def decode(self, ids: Tensor | Sequence[int], **options: Any) -> str:
        """The text of token ids; options of other tokenizers, such as skip_special_tokens, make no difference."""
        parts: list[str] = []
        run: list[int] = []
        for token in [*(ids.tolist() if isinstance(ids, Tensor) else ids), self.data]:
            if token < self.data:
                run.append(int(token))
                continue
            parts += [self.tokenizer.decode(run)] if run else []
            parts.append(MASK)
            run = []
        return "".join(parts[:-1])


class HopflowModel(PreTrainedModel):
    """A saved network with its flow: `forward` returns logits, `generate` draws sequences."""

    config_class = HopflowConfig
    base_model_prefix = "network"
    main_input_name = "input_ids"

    def __init__(self, config: Any, saved: Pretrained | None = None) -> None:
        super().__init__(config)
        self.network = from_plain(Model, config.model) if saved is None else saved.model
        flow = None if config.flow is None else from_plain(Flow, config.flow)
        self.flow = flow if saved is None else saved.flow
        self._saved_tokenizer = None if saved is None else saved.tokenizer
        self.origin = None if saved is None else saved.origin

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, name: str | os.PathLike[str], *arguments: Any, **options: Any
    ) -> "HopflowModel":
        """Load a folder of `save_pretrained`, a run, or `user/name` on the hub; every hash is checked.

        `device_map` is one device; `dtype` converts the weights.
        """
        if arguments or (unknown := sorted(options.keys() - {*LOADED, *IGNORED})):
            shown = "positional arguments" if arguments else ", ".join(unknown)
            raise ValueError(f"{shown} cannot be passed for a network of hopflow; allowed are {', '.join(LOADED[1:])}")
        if options.get("revision") and isinstance(name, str) and "@" not in name and hub.named(name):  # no folder
            name = f"{name}@{options['revision']}"
        device, dtype = _device(options.get("device_map")), _dtype(options.get("dtype", options.get("torch_dtype")))
        saved = from_pretrained(name, device=device, offline=bool(options.get("local_files_only")))
        model = cls(HopflowConfig(**config_file.read(saved.folder)), saved)
        model.config.name_or_path = str(name)
        if dtype is not None:
            model.to(dtype)  # type: ignore[arg-type]
        return model.eval()

    def save_pretrained(  # type: ignore[override]
        self, folder: str | os.PathLike[str], *arguments: Any, **options: Any
    ) -> None:
        """Save as `hf.save_pretrained` does; hopflow, its commands and AutoModel read the folder."""
        if unknown := [name for name in ("push_to_hub", "state_dict", "variant") if options.get(name)]:
            raise ValueError(f"{unknown[0]} cannot be passed for a network of hopflow: save it without.")
        recipe = getattr(self.config, "recipe", None)
        names = getattr(self.config, "label_names", None) or ()
        tokenizer = self._saved_tokenizer
        save_pretrained(Path(folder), self.network, self.flow, tokenizer=tokenizer, recipe=recipe, label_names=names)

    @property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer that the network was saved with, as streamers need it."""
        if self._saved_tokenizer is None or self.flow is None:
            raise ValueError(f"{self.config.name_or_path} was saved without a tokenizer or without a flow.")
        return TextTokenizer(self._saved_tokenizer, self.flow.vocab.data)

    def forward(
        self,
        input_ids: Int[Tensor, "B L"],
        t: Tensor | float = 0.0,
        attention_mask: Tensor | None = None,
    ) -> Any:
        """Logits over data tokens (B, L, Vd) at time t, one number or one for each sequence."""
        if attention_mask is not None and not bool(attention_mask.all()):
            raise ValueError("attention_mask must be 1 everywhere: networks of hopflow have no padding.")
        if is_autoregressive(self.network):
            return MaskedLMOutput(logits=self.network(input_ids))
        times = torch.as_tensor(t, dtype=time_dtype(self.network), device=input_ids.device)
        return MaskedLMOutput(logits=self.network(input_ids, times.expand(len(input_ids))))

    def generate(
        self,
        input_ids: Int[Tensor, "B P"] | None = None,
        *,
        max_new_tokens: int = 0,
        n: int = 1,
        length: int | None = None,
        streamer: Any = None,
        **options: Any,
    ) -> Int[Tensor, "B L"]:
        """Draw sequences with hopflow's sampler; equal to `hf.generate`, or to `hf.infill` if there are input_ids.

        `max_new_tokens` holes follow the input_ids; masks and HOLE (-1) in them are filled as well. Without input_ids,
        n sequences of `length` tokens are drawn (default: the training length). `options` are the `SamplingOptions`:
        steps, seed, eta, temperature, …. A streamer takes one sequence.
        """
        if self.flow is None:
            raise ValueError("an autoregressive network has no flow to sample with: use `hopflow sample`.")
        if input_ids is None:
            length = (getattr(self.config, "recipe", None) or {}).get("length") if length is None else length
            if length is None:
                raise ValueError("the training length was not saved: pass length=, or input_ids and max_new_tokens=.")
            for setting, value in (("n", n), ("length", length)):
                if not isinstance(value, int) or value < 1:
                    raise ValueError(f"{setting} must be an integer ≥ 1, got {value!r}.")
            prompts = torch.full((n, length), HOLE)
        else:
            if n != 1 or length is not None:
                raise ValueError("pass either input_ids or n and length: prompts have a number and a length already.")
            prompts = self._prompts(input_ids, max_new_tokens)
        if streamer is not None:
            return self._streamed(prompts, streamer, options).to(device_of(self.network))
        if input_ids is None:
            return generate(self.network, self.flow, n=n, length=int(length), **options).tokens  # type: ignore[arg-type]
        return infill(self.network, self.flow, prompts, **options).tokens

    def _prompts(self, input_ids: Int[Tensor, "B P"], more: int) -> Int[Tensor, "B L"]:
        assert self.flow is not None
        self.flow.vocab.check_ids(input_ids, "(B, P)")
        if not isinstance(more, int) or more < 0:
            raise ValueError(f"max_new_tokens must be an integer ≥ 0, got {more!r}.")
        largest = int(input_ids.max()) if input_ids.numel() else 0
        if largest >= self.flow.vocab.size:
            raise ValueError(f"token id {largest} is out of range: {self.flow.vocab} has no such token.")
        known = torch.where(input_ids < self.flow.vocab.data, input_ids, HOLE)
        return torch.cat([known, known.new_full((len(known), more), HOLE)], 1)

    def _streamed(self, prompts: Int[Tensor, "B L"], streamer: Any, options: dict[str, Any]) -> Int[Tensor, "B L"]:
        """Draw one sequence: `put` gets the prompt, then tokens that stay, in order; `put_draft` the rest of a step."""
        if len(prompts) != 1:
            raise ValueError(f"a streamer takes one sequence, got {len(prompts)}: pass one, or leave streamer out.")
        assert self.flow is not None
        shown = _leading((prompts[0] != HOLE).cpu())
        streamer.put(prompts[:, :shown].cpu())
        with stream(self.network, self.flow, prompts, **options) as frames:
            for frame in frames:
                shown = _show(frame, shown, streamer)
            tokens = frames.result.tokens
        streamer.end()
        return tokens


def _show(frame: Frame, shown: int, streamer: Any) -> int:
    """Pass on the tokens that have become final after those that were shown; returns how many are shown then."""
    final = _leading(frame.final | frame.fixed)
    if final > shown:
        streamer.put(frame.tokens[shown:final].cpu())
    if hasattr(streamer, "put_draft") and final < len(frame.tokens):
        streamer.put_draft(frame.tokens[final:].cpu())
    return final


def _leading(flags: Tensor) -> int:
    """The number of True values before the first False."""
    return int(flags.long().cumprod(0).sum())


def _device(asked: Any) -> torch.device | str | None:
    """The device of a device_map: a device, or {"": device}; `auto` is the CPU."""
    if isinstance(asked, dict):
        if set(asked) != {""}:
            raise ValueError(f'device_map must be one device, such as "cuda:0", got {asked!r}.')
        asked = asked[""]
    return None if asked in (None, "auto") else torch.device(asked)


def _dtype(asked: torch.dtype | str | None) -> torch.dtype | None:
    """The float type to convert the weights to; None for that of the file."""
    found = getattr(torch, asked, None) if isinstance(asked, str) else asked
    if asked in (None, "auto"):
        return None
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"dtype must be a float type of torch, such as torch.bfloat16, got {asked!r}.")
    return found


AutoConfig.register(HopflowConfig.model_type, HopflowConfig, exist_ok=True)
AutoModel.register(HopflowConfig, HopflowModel, exist_ok=True)
