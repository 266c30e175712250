"""hopflow sample."""

from . import saved
from .drawing import Out, Run, Watch, deliver, draw, draw_causal, replay
from .drawn import Drawn, check_out
from .how import READERS, check_causal, how
from .output import check_target, progress_line
from .words import Debug, Json, Settings, parse_settings


def sample(
    run: Run,
    settings: Settings = None,
    out: Out = None,
    watch: Watch = False,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Draw sequences from a trained network: texts on stdout, what it took on stderr.

    Settings:
    n=4  seed=0  length (as trained)  cut=false (true: up to end-of-text)
    steps=32  eta=0  grid=even (or cosine, or times: 0,0.3,1)
    sampler=euler (or random_order, with per_call=1)
    temperature=1  top_k  top_p  min_p  draw=categorical (or gumbel32)
    batch  compile=auto (or true, false)  device=auto  precision=auto (or float32, bf16)
    threads (of a CPU; as in training)
    """
    chosen = parse_settings(settings or [], READERS)
    check_out(out)
    check_target(json_file)
    told = how(chosen)
    with progress_line() as say:
        say(f"reading {run}")
        network = saved.read(run, chosen.get("device", "auto"))
    n, length = chosen.get("n", 4), network.length(chosen.get("length"))
    if network.flow is None:
        check_causal(chosen, watch)
        with network.threads(chosen.get("threads")):
            causal = draw_causal(network, n, length, chosen)
        deliver(causal, out, json_file)
        return
    import torch

    from ..generation import HOLE

    with network.threads(chosen.get("threads")):
        found, rows, seconds = draw(network, torch.full((n, length), HOLE), told, watch)
    drawn = Drawn.of(found, network, seconds, chosen, rows, n)
    seen = watch and not drawn.interrupted and replay(found, network)
    deliver(drawn, out, json_file, seen)
