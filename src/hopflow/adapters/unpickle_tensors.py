"""A program that copies the tensors of a file of `torch.save` into a safetensors file.

    python unpickle_tensors.py FILE FOLDER FOLDER_TO_IMPORT_FROM…

It is the one place of hopflow that reads pickles: `torch.load(weights_only=True)`, which builds tensors and plain
containers and calls nothing else. It runs in a child process (`tensor_files`) with limited memory, without network, and
without permission to start programs or to write outside of FOLDER. Nothing of hopflow is imported here.

FOLDER receives weights.safetensors and names.json: the names of the tensors in their order, how many averaged
parameters follow, and the training step. If the file is refused, stdout has a JSON object with `kind` and `detail`.
"""

import json
import os
import re
import sys
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

SPARE = 2 << 30
"""Bytes of memory beyond three times the size of the file: the mapped file, the copy, and its safetensors form."""
CONTAINERS = ("state_dict", "model", "model_state_dict", "module")
"""Keys under which a checkpoint stores the network; without one, the file is the state dict itself."""
STEPS = ("global_step", "step")
MOST_STEPS = 1 << 53
"""Other numbers of steps are left out: they cannot be those of a training run."""
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
"""Linux's CLONE_NEWUSER and CLONE_NEWNET."""
MOST_NAMES, LONGEST_NAME = 100_000, 300
FORBIDDEN = (
    *("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.kill"),
    *("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.chown", "os.truncate"),
    *("ctypes.", "shutil.", "urllib.", "http.", "ftplib.", "smtplib.", "webbrowser."),
)
"""Audit events of Python that end this process: the network, other programs, foreign code and changes of files."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
"""Flags of a file that is opened to be changed."""


class Refused(Exception):
    """Why a file is not used: `kind` selects the message of the command."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(kind)
        self.kind, self.detail = kind, detail[:500]


def isolate() -> None:
    """Leave the network of the machine, where the system allows it; call it before a thread is started."""
    unshare = getattr(os, "unshare", None)  # Linux, from Python 3.12 on
    if unshare is not None:
        with suppress(OSError):
            unshare(NEW_USER | NEW_NETWORK)


def forbid(folder: Path) -> Callable[[str], None]:
    """End this process at any attempt to use the network, start a program, or write outside of `folder`.

    Returns a function that permits an event.
    """
    home, permitted = f"{folder.resolve()}{os.sep}", set[str]()

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        if event in permitted:
            return
        if event.startswith(FORBIDDEN) or (event == "open" and _writes(arguments, home)):
            os.write(2, f"refused: {event}\n".encode())
            os._exit(3)

    sys.addaudithook(check)
    return permitted.add


def _writes(arguments: tuple[Any, ...], home: str) -> bool:
    path, mode, flags = arguments
    writing = set("wax+") & set(mode) if isinstance(mode, str) else flags & WRITING
    file = Path(os.fsdecode(path if isinstance(path, str | bytes) else str(path)))
    return bool(writing) and not str(file.resolve()).startswith(home)


def limit_memory(size: int) -> None:
    """Limit memory to what copying a file of this size needs, on top of what the imports have reserved."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + 3 * size + SPARE
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):  # the system has no such limits
        pass


def read(file: Path) -> Any:
    """The content of the file: tensors, numbers, text, lists and dicts."""
    import torch

    try:
        # a file of the older format cannot be mapped
        return torch.load(file, map_location="cpu", weights_only=True, mmap=_is_archive(file))
    except (MemoryError, Refused):
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if "alloc" in text:
            raise MemoryError from None
        if type(error).__name__ == "UnpicklingError" and "Weights only load failed" in text:
            found = re.search(r"GLOBAL ([\w.]+)", text)
            raise Refused("objects", found[1] if found else "of a class that is not known") from None
        raise Refused("damaged", text.partition("\n")[0]) from None


def _is_archive(file: Path) -> bool:
    """Whether the file is a ZIP archive; one with compressed parts is refused, because they cannot be mapped."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
            raise Refused("damaged", "its parts are compressed, which torch.save never does")
    return True


def network_of(content: Any) -> Mapping[Any, Any]:
    """The state dict in a checkpoint."""
    if isinstance(content, Mapping):
        for key in CONTAINERS:
            if isinstance(content.get(key), Mapping):
                return content[key]
        return content
    raise Refused("shape", type(content).__name__)


def averages_of(content: Mapping[Any, Any]) -> list[Any]:
    """The averaged parameters of a checkpoint, in the order of the network's parameters; empty without them."""
    ema = content.get("ema")
    found = ema.get("shadow_params") if isinstance(ema, Mapping) else None
    return list(found) if isinstance(found, list | tuple) else []


def copy(content: Any, folder: Path) -> None:
    """Write the tensors of the network, and its averaged parameters, in their order."""
    import torch
    from safetensors.torch import save_file

    network = network_of(content)
    named = {name: value for name, value in network.items() if isinstance(value, torch.Tensor)}
    averages = [value for value in averages_of(content) if isinstance(value, torch.Tensor)]
    if not named or len(named) + len(averages) > MOST_NAMES:
        raise Refused("shape", f"{len(named)} tensors")
    if any(not isinstance(name, str) or len(name) > LONGEST_NAME for name in named):
        raise Refused("shape", "names that are not text")
    stored = {f"{i:06}": _plain(value) for i, value in enumerate([*named.values(), *averages])}
    save_file(stored, folder / "weights.safetensors")
    step = next((content[key] for key in STEPS if _is_count(content.get(key))), None)
    facts = {"names": list(named), "averages": len(averages), "step": step}
    (folder / "names.json").write_text(json.dumps(facts), encoding="utf-8")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_STEPS


def _plain(value: Any) -> Any:
    """A dense copy of a tensor that shares its memory with no other."""
    import torch

    if value.is_meta or value.layout is not torch.strided or value.is_quantized or value.is_complex():
        raise Refused("shape", "tensors that are sparse, quantized or complex")
    return value.detach().clone(memory_format=torch.contiguous_format)


def refuse(reason: Refused) -> NoReturn:
    """Print the reason as JSON and exit with code 2."""
    sys.stdout.write(json.dumps({"kind": reason.kind, "detail": reason.detail}))
    sys.stdout.flush()
    sys.exit(2)


def main() -> None:
    """Copy the tensors of a file into a folder; the further arguments are the folders to import from."""
    source, target, *folders = sys.argv[1:]
    sys.path[:] = folders
    isolate()
    import safetensors.torch  # noqa: F401  before memory is limited
    import torch

    torch.set_num_threads(1)
    file, folder = Path(source), Path(target).resolve()
    limit_memory(file.stat().st_size)
    permit = forbid(folder)
    try:
        content = read(file)
        permit("ctypes.call_function")  # safetensors casts pointers, which Python reports from 3.14 on
        copy(content, folder)
    except MemoryError:
        refuse(Refused("memory"))
    except Refused as reason:
        refuse(reason)
    except RuntimeError as error:
        if "alloc" not in str(error):
            raise
        refuse(Refused("memory"))


if __name__ == "__main__":
    main()
