"""The doctor: versions, devices and missing packages of this installation, to paste into an issue."""

import os
import platform
import re
import secrets
import shutil
import time
from dataclasses import asdict, dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from . import __version__
from .system import atomic

LOW_DISK = 2 * 1024**3  # bytes; a training run with its checkpoints needs more


@dataclass(frozen=True)
class Extra:
    """An optional group of dependencies: installed packages, missing packages, and the command that installs them."""

    present: dict[str, str]
    missing: list[str]
    install: str


@dataclass(frozen=True)
class Diagnosis:
    """All findings, as plain data."""

    hopflow: str
    python: str
    platform: str
    packages: dict[str, str | None]
    devices: dict[str, Any]
    free_bytes: int
    write_seconds: float | None
    extras: dict[str, Extra]
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "healthy": self.healthy}


def examine(folder: Path) -> Diagnosis:
    """Examine this installation, and `folder`, where results would be written."""
    problems: list[str] = []
    warnings: list[str] = []
    core, optional = requirements()
    if not core:
        warnings.append("hopflow is not installed (only importable): pip install -e .")
    free = shutil.disk_usage(folder).free
    if free < LOW_DISK:
        warnings.append(f"only {_size(free)} free on this disk")
    return Diagnosis(
        hopflow=__version__,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        platform=platform.platform(),
        packages={name: _core_version(name, problems) for name in core},
        devices=_devices(problems),
        free_bytes=free,
        write_seconds=_probe_write(folder, problems),
        extras={name: _extra(name, packages) for name, packages in optional.items()},
        problems=problems,
        warnings=warnings,
    )


def requirements() -> tuple[list[str], dict[str, list[str]]]:
    """The names of the core dependencies, and of those of each extra, from the metadata of the installed package."""
    core: list[str] = []
    extras: dict[str, list[str]] = {}
    try:
        declared = metadata.requires("hopflow") or []
    except metadata.PackageNotFoundError:
        return core, extras
    for line in declared:
        name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        extra = re.search(r"""extra == ['"]([\w-]+)['"]""", line)
        if extra is None:
            core.append(name)
        elif extra[1] != "all":  # `all` only repeats the others
            extras.setdefault(extra[1], []).append(name)
    return core, extras


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _core_version(package: str, problems: list[str]) -> str | None:
    """The version of a core package, which must also be importable: installations are often incomplete."""
    version = _version(package)
    try:
        import_module(package)
    except Exception as error:  # a broken binary may raise anything
        problems.append(f"{package} cannot be imported: {str(error) or repr(error)}".splitlines()[0])
    return version


def _extra(name: str, packages: list[str]) -> Extra:
    versions = {package: _version(package) for package in packages}
    present = {package: version for package, version in versions.items() if version}
    missing = [package for package in packages if package not in present]
    return Extra(present, missing, f"pip install 'hopflow[{name}]'")


def _devices(problems: list[str]) -> dict[str, Any]:
    devices: dict[str, Any] = {"cpu_cores": os.cpu_count()}
    try:
        import torch

        from .kernels.support import missing_requirement

        devices["cpu_threads"] = torch.get_num_threads()
        devices["cuda_version"] = torch.version.cuda
        devices["cuda"] = [_cuda(torch, index) for index in range(torch.cuda.device_count())]
        devices["mps"] = torch.backends.mps.is_available()
        devices["kernels_lack"] = missing_requirement()
    except ImportError:
        pass  # already reported with the packages
    except Exception as error:  # an incompatible driver may raise any exception
        problems.append(f"torch cannot list its devices: {error}".splitlines()[0])
    return devices


def _cuda(torch: Any, index: int) -> dict[str, Any]:
    card = torch.cuda.get_device_properties(index)
    return {"name": card.name, "bytes": card.total_memory, "capability": f"{card.major}.{card.minor}"}


def _probe_write(folder: Path, problems: list[str]) -> float | None:
    """Seconds for one write + fsync + rename, which is how every file is saved."""
    probe = folder / f".hopflow-doctor-{secrets.token_hex(8)}"
    start = time.perf_counter()
    try:
        atomic.write(probe, b"probe")
        if probe.read_bytes() != b"probe":
            raise OSError("the file has other content than was written")
    except OSError as error:
        problems.append(f"cannot write, fsync and rename a file in this folder: {error.strerror or error}")
        return None
    finally:
        probe.unlink(missing_ok=True)
    return time.perf_counter() - start


def show(report: Diagnosis, console: Console) -> None:
    """Print a column of names, a column of findings, then warnings and problems."""
    lines = _lines(report)
    width = max(len(label) for label, _ in lines) + 2
    for label, finding in lines:
        console.print(Text.assemble((label.ljust(width), "bold"), finding), soft_wrap=True)
    for text in report.warnings:
        console.print(f"note: {text}", style="yellow", soft_wrap=True)
    for text in report.problems:
        console.print(f"problem: {text}", style="red", soft_wrap=True)
    if report.healthy:
        console.print("all required packages work", style="green")


def _lines(report: Diagnosis) -> list[tuple[str, str]]:
    devices = report.devices
    lines = [
        ("hopflow", report.hopflow),
        ("python", report.python),
        ("platform", report.platform),
        *((name, version or "missing") for name, version in report.packages.items()),
        ("cpu", f"{devices['cpu_cores']} cores, torch threads: {devices.get('cpu_threads', 'unknown')}"),
    ]
    cards = devices.get("cuda", [])
    lines += [
        (f"cuda:{index}", f"{card['name']}, {_size(card['bytes'])}, capability {card['capability']}")
        for index, card in enumerate(cards)
    ]
    if cards and (lack := devices.get("kernels_lack")):
        lines.append(
            ("kernels", f"no, Triton is missing {lack}: without its kernels a training step takes twice as long")
        )
    if not cards:
        built = devices.get("cuda_version")
        lines.append(
            ("cuda", f"no device (torch built for CUDA {built})" if built else "no (torch built without CUDA)")
        )
    lines.append(("mps", "yes" if devices.get("mps") else "no"))
    lines.append(("disk", f"{_size(report.free_bytes)} free"))
    seconds = report.write_seconds
    lines.append(("write", "failed" if seconds is None else f"write, fsync, rename in {1000 * seconds:.1f} ms"))
    lines += [(f"[{name}]", _extra_line(extra)) for name, extra in report.extras.items()]
    return lines


def _extra_line(extra: Extra) -> str:
    have = ", ".join(f"{package} {version}" for package, version in extra.present.items())
    if not extra.missing:
        return have
    lack = f"missing {', '.join(extra.missing)}: {extra.install}"
    return f"{have}; {lack}" if have else lack


def _size(n: int) -> str:
    return f"{n / 1024**3:.1f} GiB"
