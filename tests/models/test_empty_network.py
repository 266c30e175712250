"""Networks without weights, and what loading one imports."""

import subprocess
import sys
from pathlib import Path

import torch

import hopflow as hf
from hopflow.models.empty_network import without_weights

DRAW = """
import sys, hopflow as hf
run = hf.from_pretrained(sys.argv[1])
hf.generate(run.model, run.flow, n=1, length=4, steps=2)
print(sorted({"torch._dynamo", "torch._inductor"} & sys.modules.keys()))
"""


def test_a_network_without_weights_draws_nothing_and_has_no_memory():
    before = torch.get_rng_state()
    with without_weights():
        network = hf.Transformer(hf.Vocab(5, 1), "micro", predict_x0=True)
    assert all(parameter.is_meta for parameter in network.parameters())
    assert torch.equal(torch.get_rng_state(), before)
    assert {name: tuple(p.shape) for name, p in network.named_parameters()} == {
        name: tuple(p.shape) for name, p in hf.Transformer(hf.Vocab(5, 1), "micro", predict_x0=True).named_parameters()
    }


def test_a_saved_network_is_sampled_without_importing_the_compiler(tmp_path):
    source = hf.Mask(hf.Vocab(5, 1))
    hf.save_pretrained(tmp_path / "net", hf.Transformer(source.vocab, "micro"), hf.Flow(source))
    path = str(Path(hf.__file__).parents[1])
    run = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {path!r}){DRAW}", str(tmp_path / "net")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
