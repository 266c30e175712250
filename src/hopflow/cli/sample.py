"""hopflow sample."""

from . import trained_network
from .build_sampler import check_autoregressive, sampling_options
from .draw_samples import Out, Run, Watch, draw, draw_autoregressive, draw_watched, write_samples
from .options import Debug, Json, Offline, Settings
from .output import check_target, progress_line
from .sample_output import DrawnSamples, check_out, label_facts
from .settings_parser import parse_settings


def sample(
    run: Run,
    settings: Settings = None,
    out: Out = None,
    watch: Watch = False,
    json_file: Json = None,
    offline: Offline = False,
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
        network = trained_network.load(run, chosen.device, chosen.model, offline=offline)
    length = network.sequence_length(chosen.length)
    if network.flow is None:
        check_autoregressive(chosen.typed(), watch)
        with network.threads(chosen.threads):
            drawn = draw_autoregressive(network, length, chosen)
        write_samples(drawn, out, json_file)
        return
    import torch

    from ..sampling.generation import HOLE

    labels = network.labels(chosen.label, chosen.n)
    options = {**options, "labels": labels}
    with network.threads(chosen.threads):
        found = (draw_watched if watch else draw)(network, torch.full((chosen.n, length), HOLE), options)
    of = label_facts(network, labels, found.rows)
    drawn = DrawnSamples.of(found.out, network, found.seconds, chosen, found.rows, chosen.n, of)
    write_samples(drawn, out, json_file, found.shown)
