"""hopflow sample."""

from . import trained_network
from .draw_samples import Out, Run, Watch, draw, draw_autoregressive, replay, write_samples
from .options import Debug, Json, Settings
from .output import check_target, progress_line
from .sample_output import DrawnSamples, check_out
from .sampling_options import check_autoregressive, sampling_options
from .settings_parser import parse_settings


def sample(
    run: Run,
    settings: Settings = None,
    out: Out = None,
    watch: Watch = False,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Draw texts from a trained network.

    Texts go to stdout; network calls, hops and time go to stderr.
    """
    from .command_settings import SampleSettings

    chosen = parse_settings(settings, SampleSettings)
    check_out(out)
    check_target(json_file)
    options = sampling_options(chosen)
    with progress_line() as progress:
        progress(f"loading {run}")
        network = trained_network.load(run, chosen.device, chosen.model)
    length = network.sequence_length(chosen.length)
    if network.flow is None:
        check_autoregressive(chosen.typed(), watch)
        with network.threads(chosen.threads):
            drawn = draw_autoregressive(network, length, chosen)
        write_samples(drawn, out, json_file)
        return
    import torch

    from ..sampling.generation import HOLE

    with network.threads(chosen.threads):
        found, rows, seconds = draw(network, torch.full((chosen.n, length), HOLE), options, watch)
    drawn = DrawnSamples.of(found, network, seconds, chosen, rows, chosen.n)
    shown = watch and not drawn.interrupted and replay(found, network)
    write_samples(drawn, out, json_file, shown)
