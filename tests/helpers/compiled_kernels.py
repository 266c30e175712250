"""Compile every kernel for a GPU, which need not be present, with the arguments that the wrappers pass; a script.

Triton's interpreter does not check types, and accepts code that the compiler rejects. Prints a line per kernel: its
name, a tab, and the products that exceed 32 bits in a tensor with more than 2^31 numbers.
"""

import inspect
import re
import sys
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from hopflow.kernels import (
    divergence_triton,
    embedding_triton,
    fused_head_triton,
    gelu_mlp_triton,
    residual_norm_triton,
    short_attention_triton,
)

HOPPER = GPUTarget("cuda", 90, 32)
KINDS = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
KINDS |= {torch.float16: "*fp16", int: "i32", float: "fp32"}
NEW_NUMBERS = ("arith.cmpi", "arith.trunci", "tt.load")
"""Operations whose result is not as large as a program's index."""
OPTIONS = ("num_warps", "num_stages", "maxnreg")


def compiled(self: JITFunction, *args: object, grid: object, warmup: bool, **keys: object) -> None:
    """Compile instead of launching."""
    options = {name: keys.pop(name) for name in OPTIONS if name in keys}
    bound = inspect.signature(self.fn).bind(*args, **keys).arguments
    fixed = {p.name for p in self.params if p.is_constexpr} | {name for name, value in bound.items() if value is None}
    signature = {
        name: "constexpr" if name in fixed else KINDS[value.dtype if isinstance(value, torch.Tensor) else type(value)]
        for name, value in bound.items()
    }
    constants = {(self.arg_names.index(name),): bound[name] for name in fixed}
    kernel = triton.compile(ASTSource(self, signature, constants), target=HOPPER, options=options)
    narrow = narrow_products(kernel.asm["ttir"])
    sys.stdout.write(f"{self.fn.__module__}.{self.fn.__name__}\t{', '.join(narrow)}\n")


def narrow_products(code: str) -> list[str]:
    """Products in 32 bits of a program's index and a size that is an argument.

    A remainder is bounded by what it is divided by; a number that is cut to 32 bits is hashed, for dropout.
    """
    indices, constants, found = set(), set(), []
    for line in code.splitlines():
        if loop := re.search(r"scf\.for (%\w+) = (%\w+) to", line):
            pairs = [loop.groups(), *re.findall(r"(%\w+) = (%\w+)[,)]", line)]
            indices.update(name for name, start in pairs if start in indices)
        if not (one := re.match(r"\s*(%\w+) = ([\w.]+) ?([^:]*)(.*)", line)):
            continue
        name, operation, read, kind = one.group(1), one.group(2), re.findall(r"%\w+", one.group(3)), one.group(4)
        if operation == "arith.constant" or (read and constants.issuperset(read)):
            constants.add(name)
        elif operation == "tt.get_program_id":
            indices.add(name)
        elif operation not in NEW_NUMBERS and indices.intersection(read):
            indices.add(name)
            if operation == "arith.muli" and "i64" not in kind and not constants.intersection(read):
                found.append(name)
    return found


def main() -> None:
    JITFunction.run = compiled
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(shared_memory_per_block_optin=227 << 10)
    rows, tokens, u = torch.zeros(5, 128), torch.zeros(5, dtype=torch.int32), torch.zeros(5, dtype=torch.float64)
    bias, three = torch.zeros(128), torch.zeros(5, 3)
    for logits in (rows, rows.bfloat16()):
        fused_head_triton.forward(logits, bias, tokens, tokens)
        fused_head_triton.backward_(logits, bias, tokens, tokens, three, three)
    divergence_triton.row_divergence(rows[:, :100], bias, tokens, tokens, three[:, 0], torch.zeros(5, 7))
    fused_head_triton.draw(rows, bias, tokens, three[:, 0], u)
    table = torch.zeros(9, 768)
    embedding_triton.lookup(table, torch.zeros(5, 3, dtype=torch.int64), table[0], torch.bfloat16)
    embedding_triton.lerp(table, table, torch.zeros(()), out=table)
    for dtype in (torch.bfloat16, torch.float16):
        for length, width in ((128, 64), (100, 32)):
            qkv, rotary = torch.zeros(2, length, 3, 6, width, dtype=dtype), torch.zeros(2, length, width // 2)
            short_attention_triton.forward(qkv, *rotary)
            short_attention_triton.backward(torch.zeros(2, length, 6 * width, dtype=dtype), qkv, *rotary)
            short_attention_triton.forward_at(qkv[0, :5, 0], qkv[:, :, 1:], tokens.long(), tokens.long(), *rotary)
        x, part, one = torch.zeros(3, 128, 768, dtype=dtype), torch.zeros(3, 1, 768, dtype=dtype), torch.tensor(1)
        for seed, dropout in ((None, 0.0), (one, 0.1)):
            out, _, stats = residual_norm_triton.forward(x, x, part, part, part, 1.0, seed, dropout, 1e-5, dtype)
            residual_norm_triton.backward(x, x, out, x, part, part, stats, 1.0, seed, dropout)
        y, added = torch.zeros(64, 3072, dtype=dtype), torch.zeros(3072, dtype=dtype)
        gelu_mlp_triton.forward(y, added)
        gelu_mlp_triton.backward_(y, y, added)


if __name__ == "__main__":
    main()
